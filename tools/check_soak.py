# Copyright (c) mmib contributors. All rights reserved.
"""Train through many virtual epochs, as a training of weeks does, and check
the accounts.

The network is small, and so are the images, some of which arrive as NaN. The
training is killed on the way and goes on from its last checkpoint. What is
trained on is counted apart from mmib, by what the data set marked on each
image and by the weights that the losses used. It prints a line for each thing
that must hold, and the exit status is 1 if one does not.
"""
import argparse
import ctypes
import gc
import json
import math
import os
import os.path as osp
import pickle
import signal
import subprocess
import sys
import tempfile
from typing import List, Optional

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS
from mmengine.runner import Runner
from mmseg.registry import DATASETS

from mmib import InfoBatchHook
from mmib.planner import VirtualEpoch
from tests.system.small_training import IndexDataset, small_config

POLICIES = ('QuantileTiers', 'MeanThreshold', 'Budget')
# What remains of the iterations with each of them, about.
KEPT_SHARES = dict(QuantileTiers=0.525, MeanThreshold=0.75, Budget=0.525)
DELTA = 0.85


@DATASETS.register_module()
class SoakDataset(IndexDataset):
    """Images of noise, whose brightness tells the class more or less clearly.

    Args:
        size (int): Number of images.
        nan_share (float): Probability that a visit gets an image of NaN.
            Defaults to 0.
    """

    def __init__(self, size: int, nan_share: float = 0.) -> None:
        super().__init__(size)
        self.nan_share = nan_share

    def __getitem__(self, index: int) -> dict:
        sample = super().__getitem__(index)
        noise = torch.randn(
            3, 8, 8, generator=torch.Generator().manual_seed(index))
        brightness = (1 - 2 * (index % 2)) * (index % 97) / 97
        # The backbone divides by 16.
        sample['inputs'] = 16 * (noise + brightness)
        if torch.rand(()) < self.nan_share:
            sample['inputs'].fill_(float('nan'))
        sample['data_samples'].set_metainfo(
            dict(index=index, ori_shape=(8, 8), img_shape=(8, 8)))
        return sample


@OPTIM_WRAPPERS.register_module()
class FiniteOptimWrapper(OptimWrapper):
    """Leaves out a step whose gradients aren't finite, as the scaler of mixed
    precision does."""

    num_skipped = 0

    def step(self, **kwargs) -> None:
        if all(p.grad is None or p.grad.isfinite().all()
               for group in self.param_groups for p in group['params']):
            super().step(**kwargs)
        else:
            self.num_skipped += 1


class Account:
    """What was trained on, counted apart from mmib.

    Args:
        num_images (int): Images in the data set.
    """

    def __init__(self, num_images: int) -> None:
        self.num_images = num_images
        self.num_epochs = 0
        self.slots = 0
        self.covered = 0.
        self.full_passes = 0
        # Of the virtual epoch in training.
        self.indices: List[int] = []
        self.weights: List[float] = []
        # Of whole plans that leave images out.
        self.shares: List[float] = []
        self.weight_sums = np.zeros(num_images)
        self.variance = 0.
        self.last_visits = np.zeros(num_images, int)
        self.max_gap = 0
        self.nan_pruning = 0
        self.nan_annealing = 0
        self.weighted_annealing = 0
        self.problems: List[str] = []

    def add(self, indices: List[int], weights: List[float]) -> None:
        """Count trained slots of the virtual epoch in training."""
        self.slots += len(indices)
        self.indices += indices
        self.weights += weights

    def close(self, epoch: VirtualEpoch, cut: bool) -> None:
        """End a virtual epoch.

        Args:
            epoch (VirtualEpoch): What mmib says of it.
            cut (bool): Whether annealing or the end of the training may
                leave a part of it.
        """
        self.num_epochs += 1
        size = len(self.indices)
        indices = np.array(self.indices, int)
        weights = np.sort(np.array(self.weights, np.float32))
        self.covered += size / epoch.size
        if len(np.unique(indices)) < size:
            self._problem('trains on an image twice')
        if epoch.start != self.slots - size:
            self._problem(f'begins at {self.slots - size}, not {epoch.start}')
        if not cut or size == epoch.size:
            expected = np.concatenate([
                np.full(t.kept, t.size / max(t.kept, 1), np.float32)
                for t in epoch.tiers
            ])
            if size != epoch.size:
                self._problem(f'has {size} slots instead of {epoch.size}')
            elif not np.array_equal(weights, np.sort(expected)):
                self._problem('has other weights than its tiers')
            if epoch.size == self.num_images:
                self.full_passes += 1
            else:
                self._count_weights(epoch)
        gaps = self.num_epochs - self.last_visits[indices]
        self.max_gap = max(self.max_gap, int(gaps.max(initial=0)))
        self.last_visits[indices] = self.num_epochs
        self.indices, self.weights = [], []

    def _count_weights(self, epoch: VirtualEpoch) -> None:
        self.shares.append(epoch.size / self.num_images)
        np.add.at(self.weight_sums, self.indices, self.weights)
        # Of weight x kept, in the mean over all images.
        self.variance += sum(t.size * (t.size / max(t.kept, 1) - 1)
                             for t in epoch.tiers) / self.num_images

    def _problem(self, text: str) -> None:
        self.problems.append(f'virtual epoch {self.num_epochs} {text}')

    def state_dict(self) -> dict:
        return {
            name:
            torch.tensor(value) if isinstance(value, np.ndarray) else
            value[:] if isinstance(value, list) else value
            for name, value in vars(self).items()
        }

    def load_state_dict(self, state_dict: dict) -> None:
        for name, value in state_dict.items():
            if isinstance(value, torch.Tensor):
                value = value.cpu().numpy()
            setattr(self, name, value)


@HOOKS.register_module()
class SoakHook(Hook):
    """Keeps the account, samples the memory, and kills the training.

    Args:
        figures (str): File for the figures at the end of the training.
        kill_at (int, optional): Iteration after which the process is killed.
            Defaults to None.
    """

    # After InfoBatchHook, also where that one fills the checkpoint.
    priority = 'LOW'

    def __init__(self, figures: str, kill_at: Optional[int] = None) -> None:
        self.figures = figures
        self.kill_at = kill_at
        self.memory: List[list] = []
        self.states: List[list] = []
        self.miou: List[float] = []
        self.resumed: Optional[dict] = None
        self._loaded: Optional[dict] = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self._loaded = checkpoint['soak']

    def before_train(self, runner: Runner) -> None:
        self.hook = next(
            h for h in runner.hooks if isinstance(h, InfoBatchHook))
        self.planner = self.hook.planner
        self.account = Account(self.planner.num_samples)
        self.epoch = None
        if self._loaded is not None:
            self.account.load_state_dict(self._loaded['account'])
            self.memory, self.states, self.miou = (
                self._loaded[name] for name in ('memory', 'states', 'miou'))
            self.epoch = self.planner.epoch
            self.resumed = dict(
                iteration=runner.iter,
                virtual_epoch=self.planner.num_epochs,
                samples=len(self.memory))

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Optional[dict] = None) -> None:
        indices = [s.metainfo['index'] for s in data_batch['data_samples']]
        weights = self.hook.losses[0].weights
        weights = [1.] * len(indices) if weights is None else weights.tolist()
        epoch, edge = self.planner.epoch, 0
        if epoch != self.epoch:
            edge = epoch.start - self.account.slots
            self.account.add(indices[:edge], weights[:edge])
            if self.epoch is not None:
                self.account.close(
                    self.epoch,
                    cut=epoch.start == self.planner.annealing_start)
            self.epoch = epoch
            self._sample_memory(runner)
        self.account.add(indices[edge:], weights[edge:])
        self._count_nan(runner, data_batch['inputs'])
        if runner.iter >= self.planner.annealing_iter:
            self.account.weighted_annealing += sum(w != 1 for w in weights)

    def _count_nan(self, runner: Runner, inputs: List[torch.Tensor]) -> None:
        num_nan = sum(bool(image.isnan().any()) for image in inputs)
        if runner.iter < self.planner.annealing_iter:
            self.account.nan_pruning += num_nan
        else:
            self.account.nan_annealing += num_nan

    def _sample_memory(self, runner: Runner) -> None:
        # What nothing refers to any more is no growth: give it back.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        with open('/proc/self/statm') as file:
            pages = int(file.read().split()[1])
        resident = pages * os.sysconf('SC_PAGE_SIZE')
        # The history of MMEngine's logs grows in stock training, too.
        history = sum(array.nbytes
                      for buffer in runner.message_hub.log_scalars.values()
                      for array in buffer.data)
        self.memory.append([self.planner.num_epochs, resident, history])

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        state = checkpoint['infobatch']
        self.states.append([
            runner.iter,
            len(pickle.dumps(state)),
            len(state['sampler']['indices']),
            len(state['planner']['epochs'])
        ])
        # A shallow copy: the lists grow while the state is in use.
        checkpoint['soak'] = dict(
            account=self.account.state_dict(),
            memory=self.memory[:],
            states=self.states[:],
            miou=self.miou[:])

    def after_train_iter(self,
                         runner: Runner,
                         batch_idx: int,
                         data_batch: Optional[dict] = None,
                         outputs: Optional[dict] = None) -> None:
        if runner.iter + 1 == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def after_val_epoch(self,
                        runner: Runner,
                        metrics: Optional[dict] = None) -> None:
        self.miou.append(float(metrics['mIoU']))

    def after_train(self, runner: Runner) -> None:
        account, planner = self.account, self.planner
        position = account.slots
        account.close(self.epoch, cut=True)
        slots_per_iter = planner.slots_per_iter
        full_equivalent = account.covered * account.num_images / slots_per_iter
        scores = self.hook.scores.numpy()
        means = account.weight_sums / max(len(account.shares), 1)
        optim_wrapper = runner.optim_wrapper
        with open(self.figures, 'w') as file:
            json.dump(
                dict(
                    iterations=runner.iter,
                    images=account.num_images,
                    slots_per_iter=slots_per_iter,
                    lookahead=planner.lookahead,
                    annealing_iter=planner.annealing_iter,
                    resumed=self.resumed,
                    slots=position,
                    virtual_epochs=account.num_epochs,
                    virtual_epochs_mmib=planner.num_epochs,
                    covered=account.covered,
                    saved_iters=full_equivalent - runner.iter,
                    saved_iters_mmib=planner.saved_iters(
                        planner.epoch, self.hook.sampler.position),
                    full_passes=account.full_passes,
                    shares=account.shares,
                    least_share=least_share(self.hook.policy),
                    max_gap=account.max_gap,
                    never_visited=int((account.last_visits == 0).sum()),
                    weight_mean=float(means.mean()),
                    weight_variance=float(np.mean((means - 1)**2)),
                    weight_variance_expected=account.variance /
                    max(len(account.shares), 1)**2,
                    weight_extremes=[float(means.min()),
                                     float(means.max())],
                    weighted_annealing=account.weighted_annealing,
                    nan_pruning=account.nan_pruning,
                    nan_annealing=account.nan_annealing,
                    nan_mmib=self.hook.scores.num_non_finite(),
                    steps_skipped_since_resume=optim_wrapper.num_skipped,
                    finite_scores=bool(np.isfinite(scores).all()),
                    finite_weights=all(
                        bool(p.isfinite().all())
                        for p in runner.model.parameters()),
                    miou=self.miou,
                    memory=self.memory,
                    states=self.states,
                    checkpoints=sorted(
                        name for name in os.listdir(runner.work_dir)
                        if name.endswith('.pth')),
                    problems=account.problems), file)


def least_share(policy) -> float:
    """The smallest share of the images that a plan of a policy may keep."""
    if hasattr(policy, 'ratios'):
        edges = (0, *policy.quantiles)
        return 1 - sum((high - low) * ratio for low, high, ratio in zip(
            edges, policy.quantiles, policy.ratios))
    return 1 - getattr(policy, 'max_ratio', getattr(policy, 'ratio', 0.))


def soak_config(args: argparse.Namespace, work_dir: str) -> Config:
    """The config of the soak.

    Args:
        args (argparse.Namespace): The options of this script.
        work_dir (str): Folder of logs and checkpoints.
    """
    passes = args.virtual_epochs * args.images / args.batch_size
    # The first pass is full, and so are those of annealing.
    share = KEPT_SHARES[args.policy]
    max_iters = math.ceil(
        (passes + (1 / share - 1) * args.images / args.batch_size) /
        (DELTA / share + 1 - DELTA))
    policy = dict(type=args.policy)
    if args.policy == 'Budget':
        policy['full_iters'] = round(passes)
    interval = max(1, max_iters // 40)
    resumed = args.part == 'resumed'
    return small_config(
        work_dir,
        **{
            'train_dataloader.batch_size':
            args.batch_size,
            'train_dataloader.num_workers':
            2,
            'train_dataloader.persistent_workers':
            True,
            'train_dataloader.dataset':
            dict(
                type='SoakDataset', size=args.images,
                nan_share=args.nan_share),
            'model.test_cfg':
            dict(mode='whole'),
            'val_dataloader':
            dict(
                batch_size=1,
                num_workers=0,
                sampler=dict(type='DefaultSampler', shuffle=False),
                dataset=dict(type='SoakDataset', size=20)),
            'val_cfg':
            dict(type='ValLoop'),
            'val_evaluator':
            dict(type='IoUMetric', iou_metrics=['mIoU']),
            'optim_wrapper.type':
            'FiniteOptimWrapper',
            'train_cfg.max_iters':
            max_iters,
            'train_cfg.val_interval':
            max(1, max_iters // 20),
            'default_hooks.logger.interval':
            100,
            'default_hooks.checkpoint.interval':
            interval,
            'default_hooks.checkpoint.max_keep_ckpts':
            3,
            'custom_hooks': [
                dict(type='InfoBatchHook', policy=policy, delta=DELTA),
                dict(
                    type='SoakHook',
                    figures=osp.join(work_dir, 'figures.json'),
                    # Between two checkpoints, at 40 %: the memory of the last
                    # half is then that of one process.
                    kill_at=None if resumed else 16 * interval + interval // 2)
            ],
            'resume':
            resumed,
        })


def run_part(args: argparse.Namespace, work_dir: str, part: str) -> int:
    """Train in a process of its own until it is killed or done.

    Args:
        args (argparse.Namespace): The options of this script.
        work_dir (str): Folder of logs and checkpoints.
        part (str): 'first' or 'resumed'.

    Returns:
        int: Its exit status.
    """
    command = [
        sys.executable, __file__, '--part', part, '--work-dir', work_dir
    ]
    for name in ('virtual_epochs', 'images', 'batch_size', 'nan_share',
                 'policy'):
        command += ['--' + name.replace('_', '-'), str(getattr(args, name))]
    # The checkpoint is its own. OpenMMLab's loader needs to be told. What a
    # killed process leaves behind goes with the folder.
    env = dict(
        os.environ, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD='1', TMPDIR=work_dir)
    with open(osp.join(work_dir, f'{part}.log'), 'w') as log:
        return subprocess.run(
            command, stdout=log, stderr=subprocess.STDOUT, env=env).returncode


def slope_of(memory: List[list]) -> float:
    """Growth of the resident memory beyond MMEngine's log history, in bytes
    a virtual epoch.

    It is the median over all pairs of samples: single steps, as of buffers
    that find their size, are none.
    """
    epochs, resident, history = np.array(memory, float).T
    first, second = np.triu_indices(len(memory), 1)
    own = resident - history
    return float(
        np.median(
            (own[second] - own[first]) / (epochs[second] - epochs[first])))


def judge_accounts(figures: dict) -> List[tuple]:
    """Whether mmib's accounts are those of what was trained on."""
    resumed = figures['resumed']
    in_first_half = resumed is not None and (resumed['samples']
                                             <= len(figures['memory']) // 2)
    slots, iters = figures['slots'], figures['iterations']
    epochs, epochs_mmib = (
        figures[name] for name in ('virtual_epochs', 'virtual_epochs_mmib'))
    saved, saved_mmib = (
        figures[name] for name in ('saved_iters', 'saved_iters_mmib'))
    nan, nan_mmib = figures['nan_pruning'], figures['nan_mmib']
    return [
        (in_first_half, f'killed, and resumed from a checkpoint: {resumed}'),
        (slots == iters * figures['slots_per_iter'],
         f'{slots} slots in {iters} iterations'),
        (epochs == epochs_mmib, f'virtual epochs: {epochs}, by mmib '
         f'{epochs_mmib}; covered {figures["covered"]:.3f}'),
        (abs(saved - saved_mmib)
         < 1e-6, f'iterations saved: {saved:.3f}, by mmib {saved_mmib:.3f}'),
        (nan == nan_mmib > 0, f'images of NaN while pruning: {nan}, counted '
         f'by mmib {nan_mmib}; in annealing {figures["nan_annealing"]}'),
        (figures['finite_scores'] and figures['finite_weights'],
         f'scores and network are finite; mIoU of {len(figures["miou"])} '
         f'validations, the last one {figures["miou"][-1]:.2f}'),
    ]


def judge_plans(figures: dict) -> List[tuple]:
    """Whether the plans were trained on, and were what they should be."""
    images, epochs = figures['images'], figures['virtual_epochs']
    shares, least = np.array(figures['shares']), figures['least_share']
    # No policy leaves out more than 75 % of a tier. A longer gap than this
    # has a probability of 1e-6 in the whole soak.
    gap_bound = math.ceil(math.log(1e-6 / (images * epochs)) / math.log(0.75))
    low, high = figures['weight_extremes']
    variance, expected = (
        figures[name]
        for name in ('weight_variance', 'weight_variance_expected'))
    spread = 5 * math.sqrt(2 / images)
    return [
        (not figures['problems'],
         'every slot of every plan is trained on once, with the weight of '
         f'its tier: {epochs} virtual epochs; '
         f'{figures["problems"][:3] or "no problem"}'),
        (figures['full_passes'] > 0 and figures['never_visited'] == 0,
         f'{figures["full_passes"]} whole full passes with every image once'),
        (figures['max_gap'] <= gap_bound,
         f'every image is visited within {figures["max_gap"]} virtual epochs '
         f'(more than {gap_bound} would be no chance)'),
        # Counts of tiers round, and equal scores are in the tier above.
        (shares.min() > least - 2 / images and shares.max() < 1,
         f'kept share of {len(shares)} pruned plans: {shares.min():.4f} to '
         f'{shares.max():.4f}, mean {shares.mean():.4f}; the policy allows '
         f'{least:.4f} and more'),
        (abs(figures['weight_mean'] - 1) < 1e-5
         and abs(variance / expected - 1) < spread,
         f'mean weight of an image over {len(shares)} plans, 0 where left '
         f'out: {figures["weight_mean"]:.6f}, from {low:.3f} to {high:.3f}; '
         f'variance {variance:.5f} where chance gives {expected:.5f} '
         f'(ratio {variance / expected:.3f}, 1 +- {spread:.2f} is allowed)'),
        (figures['weighted_annealing'] == 0,
         f'annealing from iteration {figures["annealing_iter"]}: '
         f'{figures["weighted_annealing"]} weights other than 1'),
    ]


def judge_growth(figures: dict) -> List[tuple]:
    """Whether memory and checkpoints stay as large as they are."""
    images, memory = figures['images'], figures['memory']
    in_flight = figures['lookahead'] + figures['slots_per_iter']
    samples = [memory[int(f * (len(memory) - 1))] for f in (0.1, 0.5, 1)]
    # Of the process that is killed, and of the one that ends.
    parts = [
        memory[len(memory) // 10:len(memory) * 2 // 5],
        memory[len(memory) // 2:]
    ]
    slopes = [slope_of(part) for part in parts]
    # A table of scores. A resumed process takes long to settle, in stock
    # training too. A few virtual epochs only warm up.
    slope_bound = 4 * images if len(memory) >= 100 else math.inf
    states = np.array(figures['states'])[:, 1:]
    # Scores twice, and index and weight of the slots that are left.
    bounds = np.array([
        20 * images + 12 * in_flight + 20_000, images + in_flight,
        2 + math.ceil(in_flight / (figures['least_share'] * images))
    ])
    largest = states.max(0)
    return [
        (bool((largest <= bounds).all()),
         f'`infobatch` in {len(states)} checkpoints: at most {largest[0]} '
         f'bytes, in the last half {states[len(states) // 2:, 0].max()}; at '
         f'most {largest[1]} slots and {largest[2]} virtual epochs '
         f'({bounds.tolist()} are allowed)'),
        (max(slopes) < slope_bound, 'resident memory at 10 %, 50 %, 100 %: ' +
         ', '.join(f'{resident / 1e6:.1f} MB' for _, resident, _ in samples) +
         f'; of it logs of MMEngine {samples[-1][2] / 1e6:.2f} MB; the rest '
         f'grows by {slopes[0] / 1e3:.2f} kB a virtual epoch until the kill '
         f'and {slopes[1] / 1e3:.2f} kB in the last half '
         f'({slope_bound / 1e3:g} are allowed)'),
        (len(figures['checkpoints'])
         <= 4, f'{len(figures["checkpoints"])} checkpoints are kept'),
    ]


def judge(figures: dict) -> List[tuple]:
    """What must hold.

    Args:
        figures (dict): The figures of a soak.

    Returns:
        list[tuple[bool, str]]: Whether each thing holds, and its figures.
    """
    return (judge_accounts(figures) + judge_plans(figures) +
            judge_growth(figures))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--virtual-epochs', type=int, default=200)
    parser.add_argument('--images', type=int, default=2000)
    parser.add_argument('--batch-size', type=int, default=16)
    parser.add_argument(
        '--nan-share',
        type=float,
        default=0.002,
        help='probability that an image is NaN (default: %(default)s)')
    parser.add_argument('--policy', choices=POLICIES, default=POLICIES[0])
    parser.add_argument('--out', help='file for all figures, as JSON')
    # For the processes that this one starts.
    parser.add_argument(
        '--part', choices=('first', 'resumed'), help=argparse.SUPPRESS)
    parser.add_argument('--work-dir', help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    args = parse_args()
    if args.part:
        torch.set_num_threads(1)
        Runner.from_cfg(soak_config(args, args.work_dir)).train()
        return
    with tempfile.TemporaryDirectory() as work_dir:
        for part, status in (('first', -signal.SIGKILL), ('resumed', 0)):
            if run_part(args, work_dir, part) != status:
                with open(osp.join(work_dir, f'{part}.log')) as log:
                    sys.exit(f'{log.read()[-3000:]}\nThe {part} part of the '
                             'training did not end as it should.')
        with open(osp.join(work_dir, 'figures.json')) as file:
            figures = json.load(file)
    checks = judge(figures)
    for holds, text in checks:
        print('ok  ' if holds else 'FAIL', text)
    if args.out:
        with open(args.out, 'w') as file:
            json.dump(figures, file, indent=1)
    sys.exit(not all(holds for holds, _ in checks))


if __name__ == '__main__':
    main()
