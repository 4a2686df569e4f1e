# Copyright (c) mmib contributors. All rights reserved.
"""The Trainer of Hugging Face, with every call of `weigh` compared with the
truth."""
import functools
import os

import pytest
import torch
import torch.nn.functional as F

from mmib import Session
from mmib.errors import Refusal
from mmib.pruning import RandomPruning
from tests.helpers.audit import (EPOCHS, Audit, Samples, assert_same,
                                 check_facts, network, refused, said)
from tests.helpers.processes import environment_of, free_port, run_ranks
from tests.helpers.runs import state_of

transformers = pytest.importorskip('transformers')
pytest.importorskip('accelerate')

from mmib.integrations.losses import sample_losses, shifts_labels  # noqa: E402
from mmib.integrations.transformers import InfoBatchTrainerMixin  # noqa: E402

pytestmark = pytest.mark.filterwarnings('ignore')
transformers.logging.set_verbosity_error()
BATCH_SIZE = 20


class Dicts(Samples):

    def __getitem__(self, index):
        inputs, labels, image = super().__getitem__(index)
        return dict(x=inputs, labels=labels, image=image)


class Net(torch.nn.Module):
    """A classifier, which takes the arguments that a Trainer may add."""

    config = None

    def __init__(self, *layers):
        super().__init__()
        self.network = network(*layers)

    def forward(self, x, labels=None, image=None, **kwargs):
        assert not kwargs
        logits = self.network(x)
        return dict(loss=F.cross_entropy(logits, labels), logits=logits)


def with_dropout():
    return Net(torch.nn.Dropout())


class Audited:
    """A Session whose losses are compared with the truth."""

    def __init__(self, audit):
        self.audit, self.images = audit, None

    def __getattr__(self, name):
        return getattr(self.audit.session, name)

    def loader(self, *args, **kwargs):
        return self.audit.loader(*args, **kwargs)

    def weigh(self, losses, slots, predictions):
        return self.audit.weigh(losses, slots, self.images, predictions)


class Trainer(InfoBatchTrainerMixin, transformers.Trainer):

    def losses(self, outputs, inputs):
        self.session.images = inputs['image']
        return super().losses(outputs, inputs)


def trainer_of(audit, folder, model=None, kind=Trainer, **kwargs):
    arguments = dict(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH_SIZE,
        learning_rate=0.1,
        use_cpu=True,
        save_strategy='no',
        report_to='none',
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_steps=4,
        max_grad_norm=0)
    return kind(
        model or Net(),
        transformers.TrainingArguments(**{
            **arguments,
            **kwargs
        }),
        eval_dataset=Dicts(40, seed=1),
        compute_metrics=lambda results: dict(
            accuracy=(results.predictions.argmax(1) == results.label_ids).mean(
            )),
        session=Audited(audit))


def stream(**kwargs):
    return Audit(Dicts(), stream=True, **kwargs)


def column(trainer, name):
    return [line[name] for line in trainer.state.log_history if name in line]


def parameters_of(trainer):
    return torch.cat(
        [p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize('policy', [None, RandomPruning(0.5)])
@pytest.mark.parametrize(
    'workers',
    [{},
     dict(dataloader_num_workers=2, dataloader_persistent_workers=True)],
    ids=str)
def test_train(tmp_path, policy, workers):
    audit = stream(policy=policy)
    trainer = trainer_of(
        audit, tmp_path, eval_strategy='steps', eval_steps=7, **workers)
    trainer.train()
    length = audit.session.num_samples
    assert trainer.state.global_step == -(-length // BATCH_SIZE)
    audit.check(length)
    assert audit.session.progress == 1
    assert not any(trainer.lr_scheduler.get_last_lr())
    assert len(column(trainer, 'eval_accuracy')) >= 3
    shares = column(trainer, 'infobatch/kept_share')
    assert shares[0] == shares[-1] == 1 and min(shares) < 0.8
    assert column(trainer, 'infobatch/variance_ratio')
    # The mean loss, of single batches.
    assert all(0.2 < loss < 2 for loss in column(trainer, 'loss'))


@pytest.mark.parametrize(
    'arguments, left', [
        (dict(gradient_accumulation_steps=4), 32),
        (dict(dataloader_drop_last=True, per_device_train_batch_size=25), 7),
        (dict(bf16=True), 0),
        (dict(torch_compile=True, torch_compile_backend='eager'), 0),
        (dict(max_steps=9), 252),
    ],
    ids=str)
def test_other_arguments(tmp_path, arguments, left):
    """Samples that fill no step, of all accumulated batches, are left."""
    audit = stream()
    trainer = trainer_of(audit, tmp_path, **arguments)
    trainer.train()
    audit.check(audit.session.num_samples - left)
    assert not any(trainer.lr_scheduler.get_last_lr())


def test_accumulated_gradients(tmp_path):
    """They are those of one large batch."""
    results = []
    for size, steps in ((24, 1), (6, 4)):
        trainer = trainer_of(
            stream(policy=RandomPruning(0.5)),
            tmp_path,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            optim='sgd')
        trainer.train()
        results.append(parameters_of(trainer))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize('step', [5, 8, 13])
def test_resume(tmp_path, step):
    """To the last bit, with dropout, and with the same epochs in the log."""
    whole = stream()
    trainer = trainer_of(whole, tmp_path / 'whole', with_dropout())
    trainer.train()
    part = stream()
    saving = dict(save_strategy='steps', save_steps=step)
    stopped = trainer_of(part, tmp_path, with_dropout(), **saving)

    class Stop(transformers.TrainerCallback):

        def on_save(self, args, state, control, **kwargs):
            control.should_training_stop = True

    stopped.add_callback(Stop)
    stopped.train()
    rest = stream()
    rest.follow(part)
    resumed = trainer_of(rest, tmp_path, with_dropout())
    resumed.train(resume_from_checkpoint=True)
    epochs = [line['epoch'] for line in trainer.state.log_history]
    assert [line['epoch'] for line in resumed.state.log_history] == epochs
    assert max(epochs) == resumed.state.epoch == 1
    rest.check(whole.session.num_samples)
    assert rest.images == whole.images and rest.plans == whole.plans
    assert torch.equal(parameters_of(resumed), parameters_of(trainer))
    assert_same(state_of(rest.session), state_of(whole.session))
    os.remove(tmp_path / f'checkpoint-{step}' / 'infobatch.pt')
    with refused('infobatch.pt is missing, because'):
        resumed.train(resume_from_checkpoint=True)


class Sequences(torch.utils.data.Dataset):
    """Sequences with a prompt that isn't trained on."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(16, (9, ), generator=generator)
        labels = tokens.clone()
        labels[:2 + index % 4] = -100
        return dict(input_ids=tokens, labels=labels)


class OfSequences(InfoBatchTrainerMixin, transformers.Trainer):
    pass


def test_a_language_model(tmp_path):
    """The score of a sequence is the loss that the model itself gives."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=16,
            n_positions=16,
            n_embd=8,
            n_layer=1,
            n_head=2,
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0))
    dataset = Sequences()
    session = Session(
        dataset, RandomPruning(0.5), epochs=8, stream=True, normalize=True)
    trainer = OfSequences(
        model,
        transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=0,
            use_cpu=True,
            report_to='none'),
        session=session)
    trainer.train()
    tables = session.state_dict()['tables']
    assert tables['visits'].min() > 0
    for index in range(12):
        batch = {name: value[None] for name, value in dataset[index].items()}
        with torch.no_grad():
            expected = model(**batch).loss
        torch.testing.assert_close(tables['scores'][index], expected)


def test_a_model_with_another_loss(tmp_path):
    """It is refused, unless `losses` says what the loss of a sample is."""

    class Smooth(Net):

        def forward(self, x, labels=None, image=None):
            outputs = super().forward(x, labels, image)
            return dict(outputs, loss=outputs['loss'] + 1)

    for trainer_type, is_refused in ((Trainer, True), (OfLogits, False)):
        audit = stream()
        trainer = trainer_of(audit, tmp_path, Smooth(), trainer_type)
        if is_refused:
            with refused('not the mean cross entropy of `labels`.*override'):
                trainer.train()
        else:
            trainer.train()
            assert audit.session.progress == 1


class OfLogits(Trainer):

    def losses(self, outputs, inputs):
        self.session.images = inputs['image']
        return outputs['logits'].square().mean(1)


@pytest.mark.parametrize('size', [10, 40])
def test_resume_with_another_batch_size(tmp_path, size):
    part = stream()
    trainer_of(
        part, tmp_path, max_steps=9, save_strategy='steps',
        save_steps=9).train()
    rest = stream()
    rest.follow(part)
    trainer = trainer_of(rest, tmp_path, per_device_train_batch_size=size)
    trainer.train(resume_from_checkpoint=True)
    rest.check(rest.session.num_samples)
    assert rest.session.progress == 1
    assert trainer.state.global_step == 9 + -(-(432 - 180) // size)


def test_a_finished_run(tmp_path):
    """It may be resumed, and does nothing. It is not trained once more."""
    saving = dict(save_strategy='steps', save_steps=22)
    trainer = trainer_of(stream(), tmp_path, **saving)
    trainer.train()
    with refused('make a new Session and a new Trainer'):
        trainer.train()
    again = trainer_of(stream(), tmp_path)
    again.train(resume_from_checkpoint=True)
    assert again.session.progress == 1
    assert torch.equal(parameters_of(again), parameters_of(trainer))
    with pytest.raises(ValueError, match='No valid checkpoint'):
        trainer_of(stream(),
                   tmp_path / 'none').train(resume_from_checkpoint=True)


def test_arguments_serve_another_trainer(tmp_path):
    args = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to='none')
    for epochs in (4, 8):
        session = Session(Dicts(), epochs=epochs, stream=True)
        trainer = Trainer(Net(), args, session=session)
        assert trainer.args.max_steps == 9 * epochs
    assert args.max_steps == -1


def test_a_trainer_with_a_loss_of_its_own(tmp_path):

    class Weighted(transformers.Trainer):

        def compute_loss(self, model, inputs, *args, **kwargs):
            raise AssertionError

    class Mixed(InfoBatchTrainerMixin, Weighted):
        pass

    with refused('`compute_loss` of Mixed is not called in training'):
        trainer_of(stream(), tmp_path, kind=Mixed)


@pytest.mark.parametrize(
    'arguments, normalize, expected', [
        (dict(optim='sgd'), None, False),
        (dict(optim='sgd', max_grad_norm=1), None, True),
        ({}, None, True),
        ({}, False, False),
    ],
    ids=str)
def test_the_optimizer_decides(tmp_path, arguments, normalize, expected):
    audit = stream(policy=RandomPruning(0.5), normalize=normalize)
    trainer_of(audit, tmp_path, **arguments).train()
    audit.check(audit.session.num_samples)
    means = {round(plan.mean, 1) for plan in audit.plans}
    assert means == ({1.} if expected else {1., 2.})


class OwnLoss(OfLogits):
    """A loss of a batch, as scripts without a Session have it."""

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        loss = outputs['loss']
        return (loss, outputs) if return_outputs else loss


class OwnLoader(Trainer):

    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(self.train_dataset, BATCH_SIZE)


class OwnStep(Trainer):
    """Calls those of the mixin."""

    num_losses = 0

    def compute_loss(self, *args, **kwargs):
        self.num_losses += 1
        return super().compute_loss(*args, **kwargs)

    def get_train_dataloader(self):
        yield from super().get_train_dataloader()


@pytest.mark.parametrize('kind', [OwnLoss, OwnLoader])
@pytest.mark.parametrize('accumulated', [1, 3])
def test_what_hides_the_mixin(tmp_path, kind, accumulated):
    """It is refused before the first step of the optimizer."""
    audit = stream()
    trainer = trainer_of(
        audit, tmp_path, kind=kind, gradient_accumulation_steps=accumulated)
    with pytest.raises(Refusal, match='not weighed.* override `losses` of'):
        trainer.train()
    assert trainer.state.global_step == 0


def test_what_calls_the_mixin(tmp_path):
    audit = stream()
    trainer = trainer_of(audit, tmp_path, kind=OwnStep)
    trainer.train()
    audit.check(audit.session.num_samples)
    assert trainer.num_losses == audit.calls == 22


def test_a_run_that_ends_while_it_prunes(tmp_path):
    trainer = trainer_of(stream(), tmp_path, max_steps=9)
    with said('`max_steps` ends the run after 9 of the 22 steps'):
        trainer.train()
    trainer = trainer_of(stream(), tmp_path, max_steps=22)
    with said():
        trainer.train()


def test_a_second_trainer(tmp_path):
    audit = stream()
    trainer_of(audit, tmp_path).train()
    with refused('The Session is over.* make a new Session for each Trainer'):
        trainer_of(audit, tmp_path)


def test_a_causal_model_that_begins_at_random(tmp_path):
    """Losses with shifted labels and without are about the same then."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=50,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1))
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(50, (4, 30), generator=generator)
        outputs = model(tokens, labels=tokens)
        assert shifts_labels(outputs, tokens) == [True]
    same = torch.ones(4, 30, dtype=torch.long)
    outputs = dict(logits=torch.zeros(4, 30, 7), loss=torch.tensor(7.).log())
    assert shifts_labels(outputs, same) == [False, True]
    assert shifts_labels(outputs, -100 * same) == []
    with refused('override `losses`'):
        shifts_labels(dict(outputs, aux_loss=outputs['loss']), same)
    with refused('override `losses`'):
        shifts_labels((outputs['loss'], outputs['logits']), same)
    for labels in (None, same.float(), same[:, :-1]):
        with refused('override `losses`'):
            shifts_labels(outputs, labels)


class Tagger(torch.nn.Module):
    """A model that doesn't shift its labels, and at first gives all of them
    the same loss."""

    config = None

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(16, 16))

    def forward(self, input_ids, labels):
        logits = self.weights[input_ids]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return dict(loss=loss, logits=logits)


def test_a_batch_that_does_not_show_whether_labels_are_shifted(tmp_path):
    """Its gradient is that of the model's own loss."""
    session = Session(Sequences(), RandomPruning(0.5), epochs=8, stream=True)
    trainer = OfSequences(
        Tagger(),
        transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=12,
            max_steps=1,
            learning_rate=1,
            optim='sgd',
            max_grad_norm=0,
            use_cpu=True,
            report_to='none'),
        session=session)
    trainer.train()
    expected = Tagger()
    dataset = Sequences()
    batch = torch.utils.data.default_collate([dataset[i] for i in range(12)])
    expected(**batch)['loss'].backward()
    torch.testing.assert_close(trainer.model.weights, -expected.weights.grad)
    scores = session.state_dict()['tables']['scores']
    torch.testing.assert_close(scores, torch.full((12, ), 16.).log())


def train_rank(rank, results, folder, port):
    with environment_of(rank, 2, port):
        audit = stream()
        trainer = trainer_of(
            audit,
            folder,
            per_device_train_batch_size=10,
            ddp_backend='gloo',
            save_strategy='steps',
            save_steps=6,
            eval_strategy='steps',
            eval_steps=7)
        trainer.train()
        assert not any(trainer.lr_scheduler.get_last_lr())
        assert os.path.exists(f'{folder}/checkpoint-6/infobatch.pt')
        results[rank] = audit.facts(), parameters_of(trainer)


def test_two_ranks(tmp_path):
    results = run_ranks(
        functools.partial(train_rank, folder=str(tmp_path), port=free_port()),
        2)
    facts = check_facts([facts for facts, _ in results])
    assert facts.images.keys() == {*range(432)}
    assert torch.equal(results[0][1], results[1][1])


def test_refusals(tmp_path):
    with refused('this Session counts epochs: make .* `stream=True`'):
        trainer_of(Audit(Dicts()), tmp_path)
    for arguments, match in (
        (dict(eval_strategy='epoch'), "`eval_strategy='steps'` .*`eval_steps"),
        (dict(save_strategy='epoch'), "`save_strategy='steps'`"),
        (dict(max_steps=99), 'for 22 steps, and `max_steps` is 99: remove'),
        (dict(per_device_train_batch_size=200,
              gradient_accumulation_steps=4), 'for 0 steps'),
        (dict(label_smoothing_factor=0.1), 'override `losses`'),
        (dict(train_sampling_strategy='sequential'), 'which order: remove it'),
        (dict(auto_find_batch_size=True), 'from the batch size: remove it'),
        (dict(accelerator_config=dict(split_batches=True)),
         'is that of one process: remove it'),
    ):
        with refused(match):
            trainer_of(stream(), tmp_path, **arguments)
    model = Net()
    model._tp_size = 2  # As of one that is sharded by tensor parallelism.
    with refused('several processes train on the same samples'):
        trainer_of(stream(), tmp_path, model)
    with refused('`train_dataset` .* is not the dataset of the Session'):
        Trainer(
            Net(),
            transformers.TrainingArguments(str(tmp_path), use_cpu=True),
            train_dataset=Dicts(),
            session=Session(Dicts(), epochs=EPOCHS, stream=True))


def test_losses_of_sequences():
    """The mean over the labels of each sequence, as the model's own loss is
    that of one sequence."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 7, generator=generator)
    labels = torch.randint(7, (3, 5), generator=generator)
    labels[0, 2:] = -100
    labels[2] = -100
    for shift in (False, True):
        found = sample_losses(logits, labels, shift)
        for i in range(2):
            row, label = logits[i], labels[i]
            if shift:
                row, label = row[:-1], label[1:]
            torch.testing.assert_close(found[i], F.cross_entropy(row, label))
        assert found[2] == 0
    classes = labels[:, 0].clamp(0)
    torch.testing.assert_close(
        sample_losses(logits[:, 0], classes),
        F.cross_entropy(logits[:, 0], classes, reduction='none'))
