# Copyright (c) mmib contributors. All rights reserved.
import argparse

import pytest

from benchmarks import instruction_tuning

from .utils import ROOT

pytest.importorskip('transformers')
pytest.importorskip('peft')


def test_an_arm(tmp_path, monkeypatch):
    draw = pytest.importorskip('examples.llama.draw')
    monkeypatch.chdir(ROOT)
    draw.write(tmp_path)
    small = {
        'model.llama.hidden_size': 8,
        'model.llama.num_hidden_layers': 1,
        'train_dataloader.batch_size': 4,
        'train_dataloader.dataset.ann_file': str(tmp_path / 'train.jsonl'),
        'train_dataloader.dataset.indices': 16,
        'val_dataloader.dataset.ann_file': str(tmp_path / 'held_out.jsonl'),
        'val_dataloader.dataset.indices': 8,
        'train_cfg.max_iters': 24,
        'param_scheduler': [],
        'custom_hooks': [
            dict(type='InfoBatchHook', policy=dict(type='Neyman', ratio=0.5))
        ]
    }
    monkeypatch.setattr(instruction_tuning, 'NUM_GRADIENTS', 5)
    args = argparse.Namespace(cfg_options=small, work_dir=str(tmp_path))
    line = instruction_tuning.run('scratch', 'neyman', 0, args)
    assert line['iters'] == 24 and line['conversations'] == 96
    assert 96 * 2 <= line['answer_tokens'] < line['tokens']
    assert 0 < line['variance_ratio'][0]
    assert set(line['gradients']) == {'logits', 'loss', 'answer_tokens'}
    assert line['loss'] > 0
