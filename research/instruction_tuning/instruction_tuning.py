# Copyright (c) mmib contributors. All rights reserved.
"""Instruction tuning: trainings that are pruned, by their answers to held-out
instructions and by the tokens that they read.

Each training adds a line to OUT/SETTING.jsonl; what has a line isn't run
again. Run it in the root of the repository:

    python examples/llama/draw.py data/llama
    PYTHONPATH=. mmib train examples/llama/base.py
    python -m research.instruction_tuning.instruction_tuning
"""
import argparse
import os.path as osp
import time
from importlib.metadata import version
from typing import Dict

import numpy as np
import pandas as pd
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings

import mmib
from benchmarks.compare import paired
from benchmarks.compare.arms import fingerprint
from benchmarks.compare.report import by_arm, ratios
from benchmarks.compare.results import append_result, missing, read_results
from research.pruned_training import add_arm_arguments, line_of, rounded

OUT = 'research/instruction_tuning'
# Of what is learned.
SETTINGS = dict(scratch='all weights, from scratch', lora='LoRA')
RANDOM = dict(type='RandomPruning')
ARMS = dict(
    full=lambda cfg: cfg,
    short=mmib.shorten,
    random=lambda cfg: mmib.convert(cfg, policy=RANDOM, normalize=False),
    neyman=lambda cfg: mmib.convert(cfg, normalize=False))
# Conversations whose gradients are computed one by one.
NUM_GRADIENTS = 400


class TokenCounter(Hook):
    """Counts what goes through the network in training."""

    def __init__(self) -> None:
        self.counts = dict(conversations=0, tokens=0, answer_tokens=0)

    def after_train_iter(self,
                         runner,
                         batch_idx,
                         data_batch=None,
                         outputs=None) -> None:
        tokens, labels = data_batch['tokens'], data_batch['labels']
        self.counts['conversations'] += len(tokens)
        self.counts['tokens'] += tokens.numel()  # with padding
        self.counts['answer_tokens'] += int((labels >= 0).sum())


def config_of(setting: str, arm: str) -> Config:
    """The config of an arm."""
    cfg = Config.fromfile(
        f'examples/llama/{setting}.py', import_custom_modules=False)
    return ARMS[arm](cfg)


def run(setting: str, arm: str, seed: int, args: argparse.Namespace) -> dict:
    """Train an arm with a seed, and return its line."""
    cfg = config_of(setting, arm)
    name = fingerprint(cfg)
    import_modules_from_strings(**cfg.custom_imports)
    cfg.merge_from_dict(args.cfg_options)
    cfg.work_dir = osp.join(args.work_dir, f'{setting}_{arm}_{seed}')
    cfg.experiment_name = f'{setting}_{arm}_{seed}'
    cfg.randomness = dict(seed=seed)
    cfg.default_hooks.checkpoint = None
    cfg.train_cfg.val_interval = cfg.train_cfg.max_iters + 1
    runner = Runner.from_cfg(cfg)
    counter = TokenCounter()
    runner.register_hook(counter)
    start = time.process_time()
    runner.train()
    line = dict(
        line_of(arm, seed, name, runner,
                f'transformers {version("transformers")}, '),
        **counter.counts,
        cpu_seconds=time.process_time() - start)
    metrics = runner.val_loop.run()
    for key in ('exact', 'loss'):
        line[key] = metrics[f'answers/{key}']
    if arm == 'neyman':
        line['gradients'] = true_gradients(runner)
    return rounded(line)


def true_gradients(runner: Runner) -> Dict[str, float]:
    """Norms of the gradients of all trained weights, conversation by
    conversation: their correlation with the norm at the logits, with the loss
    and with the number of tokens of the answer."""
    model, dataset = runner.model, runner.train_dataloader.dataset
    collate = runner.train_dataloader.collate_fn
    weights = [w for w in model.parameters() if w.requires_grad]
    seen = []
    predictions = model.get_submodule(model.infobatch_predictions)
    handle = predictions.register_forward_hook(
        lambda module, args, output: seen.append(output))
    rows = []
    chosen = np.linspace(0, len(dataset) - 1, NUM_GRADIENTS).astype(int)
    for index in chosen:
        batch = collate([dataset[index]])
        loss = model(**batch, mode='loss')['loss'].sum()
        logits, *gradients = torch.autograd.grad(loss, [seen.pop(), *weights])
        squares = sum(gradient.square().sum() for gradient in gradients)
        rows.append([
            float(squares)**0.5,
            logits.norm().item(),
            loss.item(),
            int((batch['labels'] >= 0).sum())
        ])
    handle.remove()
    found = np.corrcoef(np.transpose(rows))[0]
    return dict(logits=found[1], loss=found[2], answer_tokens=found[3])


def arm_table(path: str) -> str:
    """What each arm of a setting read, its V, and its answers."""
    cells = paired.by_arm_and_seed(read_results(path), ('versions', ))
    exact = cells['exact'].unstack()
    of_arms = by_arm(cells)
    means = of_arms[['iters', 'tokens', 'answer_tokens', 'loss']].mean()
    saved = 1 - means / means.loc[paired.BASELINE]
    table = pd.DataFrame({
        'seeds': of_arms.size(),
        'V': ratios(cells),
        'right answers': exact.mean(axis=1),
        'held-out loss': means['loss'].map('{:.3f}'.format)
    })
    for column in ('answer_tokens', 'tokens', 'iters'):
        name = column.replace('_', ' ').replace('iters', 'iterations')
        table.insert(2, f'{name} saved', saved[column].map('{:.1%}'.format))
    others = paired.BASELINE, paired.SHORT, paired.RANDOM
    return paired.markdown(
        table.join(paired.difference_columns(exact, others)))


def gradient_table(folder: str) -> str:
    """What the norm of the gradient of all trained weights goes with, mean
    over the seeds."""
    rows = {}
    for setting, name in SETTINGS.items():
        lines = pd.DataFrame(
            read_results(osp.join(folder, f'{setting}.jsonl')))
        found = pd.DataFrame(lines['gradients'].dropna().tolist())
        rows[name] = found.mean().map('{:.2f}'.format)
    table = pd.DataFrame(rows).T
    table.columns = ['norm at the logits', 'loss', 'tokens of the answer']
    return paired.markdown(table, 'trained')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arm_arguments(parser, OUT, ARMS)
    parser.add_argument(
        '--settings', nargs='+', default=[*SETTINGS], choices=SETTINGS)
    args = parser.parse_args()
    for setting in args.settings:
        path = osp.join(args.out, f'{setting}.jsonl')
        for arm, seed in missing(path, args.arms, args.seeds):
            append_result(path, run(setting, arm, seed, args))
        print(f'{SETTINGS[setting]}:\n\n{arm_table(path)}\n')
    if set(args.settings) == set(SETTINGS):
        print(gradient_table(args.out))


if __name__ == '__main__':
    main()
