# Copyright (c) mmib contributors. All rights reserved.
import pytest
import torch

pytest.importorskip('accelerate')
pytest.importorskip('peft')
pytest.importorskip('transformers')

from examples.instruction_tuning import train  # noqa: E402

pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.mark.parametrize('options', [[], ['--lora'], ['--plain']], ids=str)
def test_the_example(tmp_path, options):
    trainer = train.main(
        train.parse_args(
            [str(tmp_path), '--epochs', '4', '--size', '64', *options]))
    session = trainer.session
    assert session.progress == 1
    # 64 conversations in batches of 32, 60 % of 4 passes or all.
    assert trainer.state.global_step == (8 if options == ['--plain'] else 5)
    tables = session.state_dict()['tables']
    assert (tables['scores'] != 1).all() and tables['visits'].min() > 0
    if '--lora' in options:
        trained = [
            name for name, parameter in trainer.model.named_parameters()
            if parameter.requires_grad
        ]
        assert trained and all('lora' in name for name in trained)


def test_batches():
    batch = train.collate([
        train.tokenize(dict(instruction='5 + 3', output='8')),
        train.tokenize(dict(instruction='copy ab', output='ab'))
    ])
    tokens, labels = batch['input_ids'], batch['labels']
    assert tokens.shape == labels.shape == batch['attention_mask'].shape
    assert batch['attention_mask'].sum(1).tolist() == [8, 11]
    learned = labels != train.IGNORED
    assert learned.sum(1).tolist() == [2, 3]
    assert torch.equal(tokens[learned], labels[learned])
