# Copyright (c) mmib contributors. All rights reserved.
"""A diffusion model (DDPM) that tells the loss of each image."""
import numpy as np
import torch
import torch.nn.functional as F
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel
from mmengine.dist import all_reduce, get_rank
from mmengine.logging import MessageHub
from mmengine.model import BaseModel
from mmengine.registry import MODELS

# Share of a batch in the moving mean loss of its timesteps.
BATCH_SHARE = 0.1


@MODELS.register_module()
class DDPM(BaseModel):
    """Learns which noise was added to an image (Ho et al., 2020).

    The loss of an image depends on its timestep far more than on the image,
    and the next timestep is drawn anew. So the score of an image is its loss
    over the mean loss of such timesteps.

    Args:
        unet (dict): Arguments of diffusers' ``UNet2DModel``.
        schedule (dict): Arguments of its ``DDPMScheduler``. Defaults to its
            own.
        normalize_score (bool): Whether the score is divided by the mean loss
            of the timestep. If not, it is the loss. Defaults to True.
        num_bands (int): Bands of timesteps that have a mean loss each.
            Defaults to 50.
    """

    # Where mmib looks at the gradient of each image.
    infobatch_predictions = 'unet.conv_out'

    def __init__(self,
                 unet,
                 schedule=dict(),
                 normalize_score=True,
                 num_bands=50):
        super().__init__()
        self.unet = UNet2DModel(**unet)
        self.schedule = DDPMScheduler(**schedule)
        self.normalize_score = normalize_score
        # In checkpoints, so that a resumed training has the same scores. 0 is
        # not known yet.
        self.register_buffer('band_losses', torch.zeros(num_bands))

    @property
    def num_timesteps(self):
        return self.schedule.config.num_train_timesteps

    def forward(self, inputs, mode='tensor'):
        """Losses, of shape (B,), of images in [-1, 1] at timesteps that are
        drawn for them; in training with the scores."""
        timesteps, noise = self.draw(inputs)
        losses = self.losses(inputs, timesteps, noise)
        if mode != 'loss':
            return losses
        if not self.normalize_score:
            return dict(loss=losses)
        score = self.relative(losses.detach(), timesteps)
        return dict(loss=losses, infobatch_score=score)

    def draw(self, images):
        """Draw timesteps and noise by the seed, the iteration and the rank: a
        resumed training draws the same, and so does one without mmib."""
        info = MessageHub.get_current_instance()
        rng = np.random.default_rng(
            [info.get_info('seed', 0),
             info.get_info('iter', 0),
             get_rank()])
        timesteps = rng.integers(self.num_timesteps, size=len(images))
        noise = rng.standard_normal(images.shape, np.float32)
        return (torch.from_numpy(timesteps).to(images.device),
                torch.from_numpy(noise).to(images.device))

    def losses(self, images, timesteps, noise):
        """Mean squared error of the noise in each image, of shape (B,)."""
        noisy = self.schedule.add_noise(images, noise, timesteps)
        predicted = self.unet(noisy, timesteps).sample
        return F.mse_loss(predicted, noise, reduction='none').mean((1, 2, 3))

    def relative(self, losses, timesteps):
        """Losses over the moving mean of their timesteps, of shape (B,)."""
        num_bands = len(self.band_losses)
        bands = timesteps * num_bands // self.num_timesteps
        member = F.one_hot(bands, num_bands).bool()
        sums = torch.where(member, losses[:, None], 0.).sum(0)
        sums = torch.stack([sums, member.sum(0)])
        # So that all ranks have the same means, and so has a checkpoint.
        all_reduce(sums)
        means = sums[0] / sums[1]  # NaN where there is none.
        later = self.band_losses.lerp(means, BATCH_SHARE)
        later = torch.where(self.band_losses > 0, later, means)
        self.band_losses.copy_(
            torch.where(torch.isfinite(later), later, self.band_losses))
        return losses / self.band_losses[bands]

    @torch.no_grad()
    def sample(self, num_images, num_steps=20, seed=0):
        """Make images in [-1, 1] of noise (DDIM, Song et al., 2021). More
        steps add up the errors of a network that was trained briefly."""
        scheduler = DDIMScheduler.from_config(self.schedule.config)
        scheduler.set_timesteps(num_steps)
        size, channels = (self.unet.config.sample_size,
                          self.unet.config.in_channels)
        images = torch.randn(
            num_images,
            channels,
            size,
            size,
            generator=torch.Generator().manual_seed(seed))
        images = images.to(self.band_losses.device)
        for timestep in scheduler.timesteps:
            predicted = self.unet(images, timestep).sample
            images = scheduler.step(predicted, timestep, images).prev_sample
        return images.clamp(-1, 1)
