# Copyright (c) mmib contributors. All rights reserved.
import pytest
import torch

from examples.instruction_tuning import data, train

pytestmark = pytest.mark.filterwarnings('ignore')


def run(folder, *options):
    args = [str(folder), '--epochs', '4', '--size', '64', *options]
    return train.main(train.parse_args(args))


@pytest.mark.parametrize('policy, steps', [('infobatch', 5), ('random', 5),
                                           ('plain', 8)])
def test_steps(tmp_path, policy, steps):
    """64 conversations in batches of 32, 60 % of 4 passes or all."""
    trainer = run(tmp_path, '--policy', policy)
    assert trainer.session.progress == 1
    assert trainer.state.global_step == steps
    tables = trainer.session.state_dict()['tables']
    assert (tables['scores'] != 1).all() and tables['visits'].min() > 0


def test_lora_on_a_model_that_copies(tmp_path):
    base = run(tmp_path / 'base', '--copy').model.state_dict()
    trainer = run(tmp_path / 'lora', '--lora', str(tmp_path / 'base'))
    names = [
        name for name, parameter in trainer.model.named_parameters()
        if parameter.requires_grad
    ]
    assert names and all('lora' in name for name in names)
    kept = trainer.model.state_dict()
    name = 'model.embed_tokens.weight'
    assert torch.equal(kept[f'base_model.model.{name}'], base[name])


def test_resume(tmp_path):
    whole = run(tmp_path / 'whole', '--epochs', '200', '--size', '32')
    assert whole.state.global_step == 120
    part = run(tmp_path / 'whole', '--epochs', '200', '--size', '32',
               '--resume')  # From step 100.
    for weight, other in zip(part.model.parameters(),
                             whole.model.parameters()):
        assert torch.equal(weight, other)


def test_batches():
    batch = data.collate([
        data.tokenize(dict(instruction='5 + 3', output='8')),
        data.tokenize(dict(instruction='copy ab', output='ab'))
    ])
    tokens, labels = batch['input_ids'], batch['labels']
    assert tokens.shape == labels.shape == batch['attention_mask'].shape
    assert batch['attention_mask'].sum(1).tolist() == [8, 11]
    learned = labels != data.IGNORED
    assert learned.sum(1).tolist() == [2, 3]
    assert torch.equal(tokens[learned], labels[learned])


def test_draws():
    right = data.draw(data.TASKS, 2000, 0, wrong=0.)
    assert right == data.draw(data.TASKS, 2000, 0, wrong=0.)
    assert right != data.draw(data.TASKS, 2000, 1, wrong=0.)
    assert dict(instruction='Sunday + 2', output='Tuesday') in right
    for each in right:
        question, output = each.values()
        if '+' in question and question[0].isdigit():
            assert eval(question) == int(output)
        elif question.startswith('sort'):
            assert list(output) == sorted(question[5:])
    answered = [
        each for each in data.draw(data.TASKS, 2000, 0, wrong=0.2)
        if each['instruction'].startswith('copy')
    ]
    wrong = sum(each['instruction'][5:] != each['output'] for each in answered)
    assert 0.1 < wrong / len(answered) < 0.3
