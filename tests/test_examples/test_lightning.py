# Copyright (c) mmib contributors. All rights reserved.
import pytest
import torch

from examples.lightning import train

pytestmark = pytest.mark.filterwarnings('ignore')


def run(pictures, folder, *options):
    args = [pictures, str(folder), '--epochs', '6', *options]
    return train.main(train.parse_args(args))


@pytest.mark.parametrize('policy, steps', [('plain', 6), ('random', 5)])
def test_controls(pictures, tmp_path, policy, steps):
    """64 images are one step of the baseline, and no epoch has none."""
    trainer = run(pictures, tmp_path, '--policy', policy)
    assert trainer.current_epoch == trainer.global_step == 6
    assert trainer.callback_metrics['infobatch/progress'] == 1


def test_stop_and_resume(pictures, tmp_path, monkeypatch):
    """Also the learning rate goes on."""

    class Stop(Exception):
        pass

    def stop(module, *_):
        if module.current_epoch == 3:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(train.Classifier, 'on_train_epoch_start', stop)
        with pytest.raises(Stop):
            run(pictures, tmp_path)
    trainer = run(pictures, tmp_path, '--resume')
    metrics = trainer.callback_metrics
    assert trainer.current_epoch == trainer.global_step == 6
    assert metrics['infobatch/progress'] == 1 and metrics['accuracy'] > 0.5
    group, = trainer.optimizers[0].param_groups
    assert group['lr'] == pytest.approx(0, abs=1e-9)
    tables = trainer.model.session.state_dict()['tables']
    assert (tables['scores'] != 1).all()


def test_augmentation_moves_images_by_up_to_4_pixels(pictures):
    torch.manual_seed(0)
    images = torch.arange(1., 65).view(1, 1, 8, 8).repeat(50, 1, 1, 1)
    augmented = train.Classifier(None).augment(images)
    assert augmented.shape == images.shape
    centers = augmented[:, 0, 4, 4]
    # 0 is the border.
    assert len(centers.unique()) > 20 and 0 in centers
    assert not torch.equal(augmented[0], augmented[1])
