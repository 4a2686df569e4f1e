# Copyright (c) mmib contributors. All rights reserved.
"""What holds for all models that return losses of samples, as that a ratio of
0 is the baseline, is in ``tests/test_tasks/test_per_sample.py``."""
import copy
import os.path as osp
import uuid

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from mmengine.runner import Runner

import mmib
from mmib.openmmlab import tasks
from mmib.openmmlab.batch import BatchContext
from tests.system.small_training import infobatch_hook, weights_of
from tests.test_tasks.test_per_sample import train

pytest.importorskip('transformers')
pytest.importorskip('peft')

from examples.llama import data, draw, model  # noqa: E402 isort:skip

EXAMPLE = osp.join(osp.dirname(draw.__file__), '{}.py')
NUM_CONVERSATIONS = 23
SIZES = dict(
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Data, and a Llama for LoRA to begin with."""
    folder = tmp_path_factory.mktemp('llama')
    draw.write(folder)
    torch.manual_seed(0)
    torch.save(
        dict(state_dict=build_model('scratch').state_dict()),
        folder / 'base.pth')
    return folder


def config_of(name, folder=None):
    cfg = Config.fromfile(EXAMPLE.format(name))
    cfg.model.llama.update(SIZES)
    if 'checkpoint' in cfg.model:
        cfg.model.checkpoint = folder and str(folder / 'base.pth')
    return cfg


def build_model(name):
    """One in which nothing is 0, as the second half of LoRA is at first."""
    torch.manual_seed(0)
    built = MODELS.build(config_of(name).model)
    with torch.no_grad():
        for weight in built.parameters():
            weight.normal_(std=0.3)
    return built


def conversation(instruction, output):
    return data.Tokenize()(dict(instruction=instruction, output=output))


SHORT = conversation('5 + 3', '8')
LONG = conversation('copy abcdefghij', 'abcdefghij')


@pytest.mark.parametrize('name, num_trained', [('scratch', 12), ('lora', 14)])
def test_losses_and_norms_by_hand(name, num_trained):
    """Each conversation as transformers has it, without padding."""
    llama, batch = build_model(name), BatchContext()
    expected = copy.deepcopy(llama).llama
    tasks.attach(llama, batch)
    batch.begin(torch.tensor([1., 3.]))
    conversations = data.pad_conversations([SHORT, LONG])
    loss, _ = llama.parse_losses(llama(**conversations, mode='loss'))
    loss.backward()
    trained = [w for w in llama.parameters() if w.requires_grad]
    assert len(trained) == num_trained
    assert all(weight.grad.abs().max() > 0 for weight in trained)
    for each, score, norm in zip((SHORT, LONG), batch.scores, batch.norms):
        alone = expected(
            input_ids=each['tokens'][None], labels=each['labels'][None])
        torch.testing.assert_close(score, alone.loss.detach())
        by_hand, = torch.autograd.grad(alone.loss, alone.logits)
        torch.testing.assert_close(norm, by_hand.norm())


def test_right_is_what_would_be_generated():
    llama = build_model('scratch')
    prompt = SHORT['tokens'][None, :6]
    answer = llama.llama.generate(
        prompt, max_new_tokens=4, do_sample=False, eos_token_id=None)[0, 6:]

    def is_exact(answer):
        labels = torch.cat([torch.full((6, ), data.IGNORED), answer])
        batch = data.pad_conversations(
            [dict(tokens=torch.cat([prompt[0], answer]), labels=labels), LONG])
        return llama(**batch, mode='predict')[0]['exact']

    assert is_exact(answer)
    for number in range(4):
        wrong = answer.clone()
        wrong[number] = 7
        assert not is_exact(wrong)


def test_metric():
    metric = model.Answers()
    for losses in ([1.], [2., 3., 4.]):
        metric.process(None,
                       [dict(loss=loss, exact=loss != 2) for loss in losses])
    assert metric.evaluate(4) == {'answers/exact': 75, 'answers/loss': 2.5}


def test_draws():
    right = draw.draw(draw.TASKS, 2000, 0, wrong=0.)
    assert right == draw.draw(draw.TASKS, 2000, 0, wrong=0.)
    assert right != draw.draw(draw.TASKS, 2000, 1, wrong=0.)
    assert dict(instruction='Sunday + 2', output='Tuesday') in right
    for each in right:
        question, output = each.values()
        if '+' in question and question[0].isdigit():
            assert eval(question) == int(output)
        elif question.startswith('sort'):
            assert list(output) == sorted(question[5:])
    answered = [
        each for each in draw.draw(draw.TASKS, 2000, 0, wrong=0.2)
        if each['instruction'].startswith('copy')
    ]
    wrong = sum(each['instruction'][5:] != each['output'] for each in answered)
    assert 0.1 < wrong / len(answered) < 0.3


def build(folder, work_dir):
    cfg = config_of('lora', folder)
    cfg.train_dataloader.batch_size = 4
    cfg.train_dataloader.dataset.update(
        ann_file=str(folder / 'train.jsonl'), indices=NUM_CONVERSATIONS)
    cfg.val_dataloader.dataset.update(
        ann_file=str(folder / 'held_out.jsonl'), indices=10)
    cfg.param_scheduler = []
    cfg.train_cfg.update(max_iters=50, val_interval=50)
    cfg.work_dir = str(work_dir)
    cfg.experiment_name = f'llama_{uuid.uuid4()}'
    return Runner.from_cfg(mmib.convert(cfg))


def test_training(folder, tmp_path):
    runner = build(folder, tmp_path)
    base = torch.load(folder / 'base.pth')['state_dict']
    assert len(train(runner)) == 30
    assert infobatch_hook(runner).run.lacks_norms is False
    assert infobatch_hook(runner).worth.value > 0
    after = weights_of(runner)
    kept = 'llama.base_model.model.model.embed_tokens.weight'
    assert torch.equal(after[kept], base['llama.model.embed_tokens.weight'])
