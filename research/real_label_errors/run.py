# Copyright (c) mmib contributors. All rights reserved.
"""People's wrong labels of CIFAR-10 (CIFAR-10N, Wei et al., 2022): which of
them rankings find, and what looking at the highest ones brings.

    python -m research.real_label_errors.run CIFAR10N.npy CIFAR10_FOLDER OUT \\
        --qualities random_label1 --passes 12 --jobs 2

The same command goes on after a stop. ``table.py`` prints the tables.
"""
import argparse
import json
import os
import os.path as osp
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS

import mmib
from benchmarks.quality import cifar10
from benchmarks.quality.arms import with_passes
from benchmarks.quality.classification import PackedImages
from benchmarks.quality.run import append_result, read_results
from benchmarks.quality.train import train, training_of

QUALITIES = ('random_label1', 'aggre_label', 'worse_label')
SHARES = (0.2, 0.1, 0.3)
FOLDS = 4
IMPORTS = ['benchmarks.quality.classification', __name__]


@DATASETS.register_module()
class Relabelled(PackedImages):
    """Some images of the training, with other labels."""

    def __init__(self, data_root, split, labels, kept=None):
        super().__init__(data_root, split)
        inputs, _ = self.tensors
        labels = torch.from_numpy(np.load(labels))
        kept = slice(None) if kept is None else np.load(kept)
        self.tensors = inputs[kept], labels[kept]


@HOOKS.register_module()
class Notes(Hook):
    """Notes what rankings are made of: scores, margins in the training (AUM),
    and what the finished network says of all images, without crops."""

    priority = 'LOWEST'

    def __init__(self, out, data):
        self.out, self.data = out, data

    def before_train(self, runner):
        size = len(runner.train_dataloader.dataset)
        self.sums, self.counts = np.zeros(size), np.zeros(size)
        runner.model.head.register_forward_hook(self.keep)

    def keep(self, module, inputs, outputs):
        self.logits = outputs.detach()

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        if (training := training_of(runner)) is None:
            return
        labels = data_batch[1][:, None]
        of_label = self.logits.gather(1, labels)[:, 0]
        others = self.logits.scatter(1, labels, -torch.inf).amax(1)
        indices = training.own_slots.indices
        self.sums[indices] += (of_label - others).numpy()
        self.counts[indices] += 1

    def before_save_checkpoint(self, runner, checkpoint):
        checkpoint['notes'] = self.sums, self.counts

    def after_load_checkpoint(self, runner, checkpoint):
        # Before `before_train` of a training that goes on.
        self.before_train = lambda runner: (
            runner.model.head.register_forward_hook(self.keep))
        self.sums, self.counts = checkpoint['notes']

    def after_train(self, runner):
        found = {}
        if training := training_of(runner):
            tables = training.tables
            found = dict(
                average=tables.averages,
                last=tables.scores,
                aum=-self.sums / np.maximum(self.counts, 1))
        with np.load(self.data) as file:
            images = torch.from_numpy(file['train_inputs'])
        runner.model.eval()
        logits = []
        with torch.no_grad():
            for part in images.split(1000):
                runner.model.test_step((part, torch.zeros(len(part)).long()))
                logits.append(self.logits)
        logits = torch.cat(logits).double()
        np.savez(self.out, logs=logits.log_softmax(1).numpy(), **found)


def margins(logs, labels):
    """As of ``mmib rank``: the highest is looked at first."""
    rows = np.arange(len(labels))
    leads = logs - logs[rows, labels][:, None]
    leads[rows, labels] = -np.inf
    return leads.max(1)


def people(source, labels, out):
    """Labels of people for the images of ``cifar10.prepare``, and the true
    ones."""
    known = np.load(labels, allow_pickle=True).item()
    order = np.argsort(known['clean_label'], kind='stable')
    numbers = []
    for path, label in cifar10.draw_splits(source)['train']:
        folder, name = osp.split(path)
        names = sorted(os.listdir(folder))
        numbers.append(order[5000 * label + names.index(name)])
    for name in (*QUALITIES, 'clean_label'):
        np.save(
            osp.join(out, f'{name}.npy'),
            np.asarray(known[name])[numbers].astype(np.int64))


def cell(args):
    """Train one cell."""
    key, passes, bfloat16, out, data, labels, kept, notes = args
    os.environ['OMP_NUM_THREADS'] = '1'
    torch.set_num_threads(1)
    cfg = with_passes(cifar10.full_training(data), passes / cifar10.PASSES)
    cfg.custom_imports = dict(imports=IMPORTS, allow_failed_imports=False)
    cfg.model.bfloat16 = bfloat16
    cfg.train_dataloader.dataset = dict(
        type='Relabelled',
        data_root=data,
        split='train',
        labels=labels,
        kept=kept)
    if key['what'] == 'score':
        cfg = mmib.convert(cfg, 1., policy=dict(type='ScoreOnly'), delta=1.)
    elif key['what'] == 'fold':
        cfg.train_cfg.max_iters = round(cfg.train_cfg.max_iters *
                                        (1 - 1 / FOLDS))
    if notes:
        cfg.custom_hooks = cfg.get(
            'custom_hooks', []) + [dict(type='Notes', out=notes, data=data)]
    name = '-'.join(map(str, key.values()))
    figures = train(cfg, 'accuracy', key['seed'], osp.join(out, 'cells', name),
                    float('inf'))
    return dict(key, accuracy=figures['quality'], seconds=figures['seconds'])


def cells(out, qualities, passes, seeds):
    """What can be trained now."""
    clean = np.load(osp.join(out, 'clean_label.npy'))
    for seed in seeds:
        yield dict(
            what='clean', quality='clean_label', passes=passes,
            seed=seed), None, None
        for quality in qualities:
            key = dict(what='score', quality=quality, passes=passes, seed=seed)
            notes = osp.join(out, f'score-{quality}-{seed}.npz')
            yield key, None, notes
    for share, quality, seed in product(SHARES, qualities, seeds):
        notes = osp.join(out, f'score-{quality}-{seed}.npz')
        if not osp.exists(notes):
            continue
        labels = np.load(osp.join(out, f'{quality}.npy'))
        with np.load(notes) as file:
            order = np.argsort(-margins(file['logs'], labels))
        looked = order[:round(share * len(order))]
        wrong = looked[labels[looked] != clean[looked]]
        name = osp.join(out, f'{quality}-{seed}-{share}')
        kept = np.setdiff1d(np.arange(len(labels)), wrong)
        np.save(f'{name}-kept.npy', kept)
        key = dict(quality=quality, passes=passes, seed=seed, share=share)
        yield dict(key, what='without'), f'{name}-kept.npy', None
        repaired = labels.copy()
        repaired[wrong] = clean[wrong]
        np.save(f'{name}-labels.npy', repaired)
        yield dict(key, what='relabelled'), None, None
    for seed in seeds:
        for quality in qualities:
            if not osp.exists(osp.join(out, f'score-{quality}-{seed}.npz')):
                continue
            fold = np.random.default_rng(seed).integers(FOLDS, size=len(clean))
            for number in range(FOLDS):
                kept = osp.join(out, f'kept-fold-{seed}-{number}.npy')
                np.save(kept, np.flatnonzero(fold != number))
                yield (dict(
                    what='fold',
                    quality=quality,
                    passes=passes,
                    seed=seed,
                    fold=number), kept,
                       osp.join(out, f'fold-{quality}-{seed}-{number}.npz'))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('labels')
    parser.add_argument('source')
    parser.add_argument('out')
    parser.add_argument('--qualities', nargs='+', default=QUALITIES)
    parser.add_argument('--passes', type=int, default=cifar10.PASSES)
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    parser.add_argument('--bfloat16', action='store_true')
    parser.add_argument('--jobs', type=int, default=2)
    args = parser.parse_args()
    out, data = args.out, osp.join(args.out, 'cifar10.npz')
    os.makedirs(out, exist_ok=True)
    if not osp.exists(data):
        cifar10.prepare(args.source, data)
    if not osp.exists(osp.join(out, 'clean_label.npy')):
        people(args.source, args.labels, out)
    results = osp.join(out, 'results.jsonl')
    # Again, with what the first trainings have ranked.
    for _ in range(2):
        done = [{
            n: v
            for n, v in line.items() if n not in ('accuracy', 'seconds')
        } for line in read_results(results)]
        missing = []
        for key, kept, notes in cells(out, args.qualities, args.passes,
                                      args.seeds):
            if key in done:
                continue
            name = f'{key["quality"]}-{key["seed"]}-{key.get("share")}-labels'
            labels = (name if key['what'] == 'relabelled' else key['quality'])
            missing.append((key, args.passes, args.bfloat16, out, data,
                            osp.join(out, f'{labels}.npy'), kept, notes))
        print(f'{len(missing)} cells to train', flush=True)
        with ProcessPoolExecutor(args.jobs, get_context('spawn')) as pool:
            for future in as_completed(pool.submit(cell, x) for x in missing):
                line = future.result()
                append_result(results, line)
                print(json.dumps(line), flush=True)


if __name__ == '__main__':
    main()
