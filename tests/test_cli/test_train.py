# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp
import re
import shlex
from functools import partial
from pathlib import Path

import mmseg
import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS
from torch import nn

import mmib
from mmib.errors import Refusal
from mmib_cli import scripts
from mmib_cli.data import missing_data
from mmib_cli.options import policy_of
from mmib_cli.train import policy_suffix
from tests.helpers.segmentors import (BASELINE, IndexDataset, read_log,
                                      small_config)

# Changes for a baseline that is converted and trained in a second.
SHORT = {
    **BASELINE,
    'train_cfg': dict(max_iters=20, val_interval=100),
    'param_scheduler': [dict(type='PolyLR', end=20, by_epoch=False)],
    'train_dataloader.batch_size': 2,
    'default_hooks.logger.interval': 1,
}


def text_of(cfg):
    """Without what is of one training alone."""
    for name in ('work_dir', 'experiment_name'):
        cfg.pop(name)
    return cfg.pretty_text


CONFIG = text_of(
    small_config('unused', **SHORT, **{'train_dataloader.dataset.size': 6}))
LAZY = """
from mmengine.optim import PolyLR
from mmengine.runner import IterBasedTrainLoop
""" + CONFIG.replace("'IterBasedTrainLoop'", 'IterBasedTrainLoop').replace(
    "'PolyLR'", 'PolyLR')

LISTED = 'the dataset has 3 of 6 images, those of hard.txt.'


@pytest.fixture
def train(run):
    return partial(run, 'train')


def write(name, text=CONFIG):
    """A config in this folder. MMEngine's loggers need names of their own,
    also within a second."""
    Path(f'{name}.py').write_text(text)
    return f'{name}.py'


def dumped(folder):
    """The config that the training wrote to its folder."""
    found, = Path(folder).glob('*.py')
    return Config.fromfile(str(found))


@pytest.mark.parametrize('name, text', [('text', CONFIG), ('lazy', LAZY)])
def test_infobatch_converts_and_trains(name, text, train):
    train(write(f'{name}-20k_six', text), '--infobatch')
    folder = f'work_dirs/{name}-12k-infobatch_six'
    log = read_log(folder)
    assert 'Iter(train) [12/12]' in log
    assert 'InfoBatch: 12 iterations covered' in log
    cfg = dumped(folder)
    assert cfg.param_scheduler[0].end == 12
    assert cfg.custom_hooks[0].policy == dict(type='Neyman', ratio=0.6)


def test_a_trial_prunes_as_the_real_run(train, capsys):
    """A few iterations on a few images, as README has it."""
    train(
        write('trial-2000k_many',
              CONFIG.replace('max_iters=20', 'max_iters=2000')), '--infobatch',
        '--work-dir', 'here', '--cfg-options', 'train_cfg.max_iters=100',
        'train_dataloader.batch_size=4', 'train_dataloader.dataset.size=64')
    # What is printed before is of the config that is trained.
    printed = capsys.readouterr().out
    assert re.search(r'train_cfg.max_iters +2000 +100\n', printed)
    assert re.search(r'train_dataloader.dataset.size +6 +64\n', printed)
    assert 'prunes until iteration 85 of 100.\nIt keeps about 0.55' in printed
    # Not the 1900 that were given up for the trial.
    assert printed.startswith('It saves about 40 % of the iterations if')
    # And nothing else of the converted config has changed.
    assert dumped('here').param_scheduler[0].end == 12
    log = read_log('here')
    assert 'WARNING - InfoBatch' not in log
    covered = re.search(r'as many passes as (\d+) iterations', log)[1]
    assert int(covered) == pytest.approx(100 / 0.6, abs=4)


@pytest.mark.parametrize('arguments, iters, policy, delta', [
    ('--policy QuantileTiers --ratio 0.5', 10, dict(type='QuantileTiers'),
     0.85),
    ('--ratio 0.8 --delta 0.7', 16, dict(type='Neyman', ratio=0.8), 0.7),
    ('--subset hard.txt', 12, dict(type='Neyman', ratio=0.6), 0.85),
])
def test_options_of_the_conversion(train, capsys, arguments, iters, policy,
                                   delta):
    own = f'{policy["type"]}{iters}'
    Path('hard.txt').write_text('1\n3\n5\n')
    train(write(f'{own}-20k_six'), '--infobatch', *arguments.split())
    folder = f'work_dirs/{own}-{iters}k-infobatch_six'
    # None goes on from the checkpoints of another.
    if '--subset' in arguments:
        folder += '_hard'
    if '--policy' in arguments:
        folder += f'_{policy["type"]}'
    cfg = dumped(folder)
    assert cfg.train_cfg.max_iters == iters
    assert cfg.custom_hooks[-1].policy == policy
    assert cfg.custom_hooks[-1].delta == delta
    # As by `mmib convert`.
    assert ' prunes until iteration ' in capsys.readouterr().out
    assert (LISTED in read_log(folder)) is ('--subset' in arguments)


@pytest.mark.parametrize('option, length, iters', [
    ('', '20k', 20),
    ('--shorten', '12k', 12),
    ('--shorten --steps 1', '12k', 12),
])
@pytest.mark.parametrize('subset', ['', 'hard'])
def test_trainings_that_prune_nothing(train, capsys, option, length, iters,
                                      subset):
    """The baseline and the control, each in a folder of its own, also on a
    list of images."""
    Path('hard.txt').write_text('1\n3\n5\n')
    name = f'nothing{iters}{subset}'
    suffix = '_hard' if subset else ''
    # The steps of the run that it is compared with.
    is_long = option == '--shorten'
    suffix += '_long-steps' * is_long
    arguments = ['--subset', 'hard.txt'] if subset else []
    train(write(f'{name}-20k_six'), *arguments, *option.split())
    folder = f'work_dirs/{name}-{length}_six{suffix}'
    log = read_log(folder)
    assert f'Iter(train) [{iters}/{iters}]' in log
    assert 'prunes' not in log + capsys.readouterr().out
    assert (LISTED in log) is bool(subset)
    cfg = dumped(folder)
    assert cfg.param_scheduler[0].end == iters
    assert cfg.train_dataloader.sampler.type == 'InfiniteSampler'
    # It trains as it was dumped, and needs mmib for a list and for the steps.
    imports = cfg.get('custom_imports', {}).get('imports', [])
    assert imports == ['mmib.labels'] * bool(subset) + ['mmib'] * is_long


def test_score_is_the_baseline_with_scores(train, capsys):
    train(write('scores-20k_six'), '--score')
    folder = 'work_dirs/scores-20k-score_six'
    printed, log = capsys.readouterr().out, read_log(folder)
    assert 'ScoreOnly() prunes nothing: the run is' in printed
    assert 'Warning' not in printed and 'WARNING - InfoBatch' not in log
    assert 'Iter(train) [20/20]' in log
    assert '0 of 40 visits of images were pruned' in log
    hook = dumped(folder).custom_hooks[-1]
    assert hook.policy.type == 'ScoreOnly' and hook.delta == 1


def test_modules_beside_the_config(train):
    """They are found, as by ``python``."""
    Path('beside_config.py').write_text("raise SystemExit('found')")
    imports = "\ncustom_imports = dict(imports=['beside_config'])\n"
    with pytest.raises(SystemExit, match='found'):
        train(write('beside', CONFIG + imports))


HOOK = r'has InfoBatchHook, .* \(add --infobatch'
IMAGES = 'it has other images'


@pytest.mark.parametrize('first, then, message', [
    ('--infobatch', '', HOOK + '.*; it has `train_cfg.max_iters = 12`, and '),
    ('--infobatch', '--cfg-options train_cfg.max_iters=12', HOOK),
    ('--score', '--cfg-options resume=True', HOOK),
    ('--infobatch --without a.csv', '--infobatch --without b.csv', IMAGES),
    ('--subset a.txt', '', IMAGES),
    ('--without a.csv', '--relabel a.csv', IMAGES),
    ('--shorten', '', 'other run: it has `train_cfg.max_iters = 12`, and '
     r'this one 20 \(.* add --cfg-options train_cfg.max_iters=20'),
    ('--infobatch', '--infobatch --cfg-options train_cfg.max_iters=14', None),
    ('--infobatch --without a.csv', '--infobatch --without c.csv', None),
])
def test_resume_of_another_training(train, first, then, message):
    """It is refused before anything is written."""
    Path('a.txt').write_text('1\n3\n5\n')
    for name, image, rank in ('a', 1, 1), ('b', 2, 1), ('c', 1, 2):
        Path(f'{name}.csv').write_text(
            f'image,verdict,rank\n3,hard,{3 - rank}\n{image},wrong,{rank}\n')
    config = write(f'again-20k_{abs(hash((first, then)))}')
    train(config, '--work-dir', 'there', *first.split())
    files = [*Path('there').iterdir()]
    resume = [config, '--work-dir', 'there', *then.split()]
    if 'resume' not in then:
        resume.append('--resume')
    if message is None:
        train(*resume)
        return
    with pytest.raises(SystemExit, match=message):
        train(*resume)
    assert [*Path('there').iterdir()] == files


def test_another_list_of_the_same_name(train):
    """Its training doesn't take the place of the one before."""
    config, option = write('named-20k'), ('--subset', 'named.txt')
    folder = Path('work_dirs/named-20k_named')
    for names, work_dir in (('1\n3\n5\n', ()), ('1\n3\n4\n', None),
                            ('1\n3\n4\n', ('--work-dir', 'other'))):
        Path('named.txt').write_text(names)
        if work_dir is None:
            files = [*folder.iterdir()]
            with pytest.raises(SystemExit, match=f'{folder} has a run'):
                train(config, *option)
            assert [*folder.iterdir()] == files
        else:
            train(config, *option, *work_dir)


TUNED = CONFIG + """
load_from = 'before/iter_20.pth'
custom_hooks = [dict(type='StopAfter')]
"""


@HOOKS.register_module()
class StopAfter(Hook):
    """As Ctrl-C, after so many iterations."""

    priority = 'LOWEST'
    iterations = 0

    def after_train_iter(self, runner, *args, **kwargs):
        if runner.iter + 1 == self.iterations:
            raise KeyboardInterrupt


@pytest.mark.parametrize('option', ['', 'load_from=before/iter_20.pth'])
def test_resume_of_a_fine_tuning(train, capsys, monkeypatch, option):
    """It goes on from its own last checkpoint, as the stop says, and before
    there is one begins from the weights of the training before."""

    def stopped(after, *arguments):
        monkeypatch.setattr(StopAfter, 'iterations', after)
        with pytest.raises(SystemExit) as stop:
            train(config, *arguments)
        assert stop.value.code == 130
        return capsys.readouterr().err.splitlines()[-1]

    train(write('before-20k'), '--work-dir', 'before')
    name = f'tuned{len(option)}'
    text = TUNED.replace('load_from', 'unused') if option else TUNED
    config = write(f'{name}-20k', text)
    call = ('--infobatch', '--cfg-options',
            'default_hooks.checkpoint.interval=3', *option.split())
    folder = f'work_dirs/{name}-12k-infobatch'
    none = f'Stopped. There is no checkpoint in {folder} yet to go on from.'
    assert stopped(2, *call) == none
    assert stopped(2, *call, '--resume') == none
    said = stopped(7, *call)
    assert said == ('Stopped. To go on from the last checkpoint: mmib train '
                    f'{config} {" ".join(call)} --resume')
    assert 'resumed' not in read_log(folder)
    again = shlex.split(said.partition('mmib train ')[2])
    assert stopped(11, *again[1:]).endswith(said)
    monkeypatch.setattr(StopAfter, 'iterations', 0)
    train(*again)
    assert re.findall(r'resumed epoch: \d+, iter: (\d+)',
                      read_log(folder)) == ['6', '9']
    assert 'InfoBatch: 12 iterations covered' in read_log(folder)


@pytest.mark.parametrize('note', ['', 'gone.pth', None])
def test_resume_from_a_file(train, capsys, monkeypatch, note):
    """It goes on from that file, whatever the last checkpoint is, and what
    goes on after that is the last checkpoint."""
    config = write(f'named{note}-20k', TUNED.replace('load_from', 'unused'))
    folder = Path(f'work_dirs/named{note}-12k-infobatch')
    call = (config, '--infobatch', '--cfg-options',
            'default_hooks.checkpoint.interval=3')
    for after, options in ((10, ()), (8, ('--resume',
                                          f'{folder}/iter_6.pth'))):
        monkeypatch.setattr(StopAfter, 'iterations', after)
        with pytest.raises(SystemExit):
            train(*call, *options)
        assert capsys.readouterr().err.endswith(
            f'last checkpoint: mmib train {" ".join(call)} --resume\n')
    assert re.findall(r'resumed epoch: \d+, iter: (\d+)',
                      read_log(folder)) == ['6']
    monkeypatch.setattr(StopAfter, 'iterations', 0)
    if note is not None:
        (folder / 'last_checkpoint').write_text(note)
        with pytest.raises(SystemExit, match=f'{folder}/last_checkpoint'):
            train(*call, '--resume')
    train(*call, f'--resume={folder}/iter_3.pth')
    log = read_log(folder)
    place = re.findall(r'in virtual epoch (\d+), after (\d+) of (\d+) ', log)
    assert len(place) == 2 and place[1] == ('1', '6', '6')
    assert re.findall(r'resumed epoch: \d+, iter: (\d+)', log) == ['6', '3']
    assert 'InfoBatch: 12 iterations covered' in log


@DATASETS.register_module()
class Unreadable(IndexDataset):
    """A dataset whose second half a decoder can't read."""

    def __getitem__(self, index):
        if index > 2:
            open('tile.tif')
        return super().__getitem__(index)


@pytest.mark.parametrize('workers', [0, 1])
def test_an_image_that_is_gone_keeps_its_traceback(train, workers):
    config = write(f'gone-20k_{workers}')
    with pytest.raises(FileNotFoundError, match='tile.tif'):
        train(config, '--infobatch', '--cfg-options',
              'train_dataloader.dataset.type=Unreadable',
              f'train_dataloader.num_workers={workers}')


def test_names_of_mmseg(train):
    """Up to the images, of which there are none."""
    name = 'upernet/upernet_r18_4xb4-80k_ade20k-512x512'
    for split in 'training', 'validation':
        Path('data/ade/ADEChallengeData2016/images', split).mkdir(parents=True)
    with pytest.raises(ValueError, match='need at least one array'):
        train(f'mmseg::{name}', '--infobatch', '--cfg-options',
              'model.pretrained=None')
    cfg = dumped('work_dirs/upernet_r18_4xb4-48k-infobatch_ade20k-512x512')
    baseline = osp.join(mmseg.__path__[0], '.mim', 'configs', f'{name}.py')
    assert cfg.train_cfg.max_iters == 48000
    assert cfg.train_dataloader.dataset == Config.fromfile(
        baseline).train_dataloader.dataset


ADE = 'mmseg::upernet/upernet_r18_4xb4-80k_ade20k-512x512'
NO_ADE = ('data/ade/ADEChallengeData2016 does not exist. .*: --cfg-options '
          'train_dataloader.dataset.data_root=FOLDER '
          'val_dataloader.dataset.data_root=FOLDER$')


@pytest.mark.parametrize('options, message', [
    ('', NO_ADE),
    ('--infobatch', NO_ADE),
    ('--cfg-options val_cfg=None',
     'train_dataloader.dataset.data_root=FOL.*R$'),
    ('--cfg-options train_dataloader.dataset.data_root=here',
     ': here/images/training does not exist. .* '
     'train_dataloader.dataset.data_prefix.img_path=FOLDER val_'),
    ('--cfg-options train_dataloader.dataset.data_root=there',
     'data/ade/.* --cfg-options val_dataloader.dataset.data_root=FOLDER$'),
])
def test_data_that_are_nowhere(train, capsys, options, message):
    """One line says so, and nothing is built or written."""
    Path('here').mkdir()
    Path('there/images/training').mkdir(parents=True)
    with pytest.raises(SystemExit) as stop:
        train(ADE, *options.split())
    assert stop.value.code.startswith("Error: The data isn't there: ")
    assert re.search(message, stop.value.code)
    assert len(stop.value.code.splitlines()) == 1
    assert not capsys.readouterr().out
    assert not Path('work_dirs').exists()


def test_a_test_without_its_data(run, capsys):
    Path('own.pth').write_text('')
    with pytest.raises(SystemExit) as stop:
        run('test', ADE, 'own.pth')
    assert stop.value.code.startswith("Error: The data isn't there: ")
    assert 'test_dataloader.dataset.data_root=FOLDER' in stop.value.code
    assert len(stop.value.code.splitlines()) == 1
    assert not capsys.readouterr().out and not Path('work_dirs').exists()


@DATASETS.register_module()
class Downloads(BaseSegDataset):
    """A dataset that need not be there."""

    def __init__(self, download=True, **arguments):
        super().__init__(lazy_init=True, **arguments)


GONE = dict(type='BaseSegDataset', data_root='gone')
PLACES = dict(
    type='BaseSegDataset',
    data_prefix=dict(img_path='gone/images', seg_map_path='gone/masks'))
LISTED_GONE = dict(type=BaseSegDataset, data_root='here', ann_file='gone.txt')
REPEATED = dict(type='RepeatDataset', times=2, dataset=GONE)
JOINED = dict(
    type='ConcatDataset', datasets=[dict(GONE, data_root='here'), GONE])
WHERE = 'train_dataloader.dataset'


@pytest.mark.parametrize(
    'dataset, found',
    [
        (GONE, [(f'{WHERE}.data_root', 'gone')]),
        (dict(PLACES, data_root='lost'), [(f'{WHERE}.data_root', 'lost')]),
        (LISTED_GONE, [(f'{WHERE}.ann_file', 'here/gone.txt')]),
        (REPEATED, [(f'{WHERE}.dataset.data_root', 'gone')]),
        (JOINED, [(f'{WHERE}.datasets.1.data_root', 'gone')]),
        # What is there, and what may be: a class may have a `data_root`.
        (PLACES, []),
        (dict(GONE, data_root='here'), []),
        (dict(GONE, data_prefix=dict(img_path='/')), []),
        (dict(GONE, ann_file='/'), []),
        (dict(PLACES, data_prefix=dict(img_path='gone',
                                       seg_map_path='here')), []),
        (dict(GONE, data_root='s3://bucket'), []),
        (dict(GONE, backend_args=dict(backend='petrel')), []),
        (dict(type='IndexDataset', size=6, data_root='gone'), []),
        (dict(type='Downloads', data_root='gone'), []),
        (dict(type='Indx', data_root='gone'), []),
        (dict(type='IndexDataset', size=6), []),
        (None, []),
    ])
def test_what_is_missing(tmp_path, monkeypatch, dataset, found):
    monkeypatch.chdir(tmp_path)
    Path('here').mkdir()
    cfg = Config(
        dict(
            default_scope='mmseg',
            train_cfg=dict(max_iters=1),
            test_cfg=dict(),
            train_dataloader=dict(dataset=dataset),
            test_dataloader=dict(dataset=dataset)))
    assert missing_data(cfg, 'train', 'val') == found
    assert missing_data(cfg, 'test') == [(name.replace('train', 'test'), path)
                                         for name, path in found]


def test_a_policy_with_arguments_has_a_folder_of_its_own(train):
    train(
        write('arguments-20k_six'), '--infobatch', '--policy',
        'QuantileTiers(quantiles=(0.2, 0.85), ratios=(0.7, 0.5))')
    cfg = dumped(
        'work_dirs/arguments-12k-infobatch_six_QuantileTiers-ratios-0.7-0.5')
    assert cfg.custom_hooks[-1].policy == dict(
        type='QuantileTiers', quantiles=(0.2, 0.85), ratios=(0.7, 0.5))


@pytest.mark.parametrize('texts, by_iter, by_epoch', [
    ([None, 'Neyman', 'mmib.Neyman', 'Neyman(num_tiers=10)'], '', ''),
    (['Neyman(ratio=0.5)'], '', '_Neyman-ratio-0.5'),
    (['Neyman(num_tiers=5,ratio=0.5)', 'Neyman( ratio=0.5, num_tiers=5)'
      ], '_Neyman-num_tiers-5', '_Neyman-num_tiers-5-ratio-0.5'),
    (['MeanThreshold', 'MeanThreshold(ratio=0.5)'], *['_MeanThreshold'] * 2),
    (['MeanThreshold(rescale=False)'], *['_MeanThreshold-rescale-False'] * 2),
    (['QuantileTiers', 'QuantileTiers(quantiles=[0.2, 0.85])'
      ], *['_QuantileTiers'] * 2),
])
def test_the_folder_of_a_policy(texts, by_iter, by_epoch):
    """One for each, however the policy is written."""
    for loop, expected in ((dict(by_epoch=False, max_iters=200), by_iter),
                           (dict(by_epoch=True, max_epochs=20), by_epoch)):
        cfg = small_config('unused', **BASELINE)
        cfg.train_cfg = loop
        if 'max_epochs' in loop:
            cfg.train_dataloader.sampler = dict(type='DefaultSampler')
        assert {
            policy_suffix(mmib.convert(cfg, policy=text and policy_of(text)))
            for text in texts
        } == {expected}


@pytest.fixture
def processes(monkeypatch):
    """As of a training of several without GPUs: MMEngine's wrapper of models,
    and what it is called with in the end."""
    calls = []
    monkeypatch.setattr(scripts.dist, 'init_process_group', calls.append)
    monkeypatch.setattr(scripts.dist, 'destroy_process_group', calls.clear)
    monkeypatch.setattr(Runner, 'wrap_model', lambda *args: calls.append(args))
    with scripts.distributed_on_cpu():
        yield Runner.wrap_model, calls
    assert not calls


def test_a_wrapper_of_models_names_no_device(processes):
    """Also where the config has one. A whole training is in
    ``tests/test_tools``."""
    wrap, calls = processes
    model = nn.BatchNorm2d(2)
    wrap(None, dict(type='Own', static_graph=True), model)
    own = dict(type='Own', static_graph=True, device_ids=None)
    assert calls == ['gloo', (None, own, model)]


def test_layers_that_need_gpus(processes):
    """They are refused with the options that change them."""
    model = nn.Module()
    model.backbone = nn.ModuleDict(
        dict(bn1=nn.SyncBatchNorm(2), bn2=nn.SyncBatchNorm(2)))
    model.decode_head = nn.BatchNorm2d(2)
    model.auxiliary_head = nn.ModuleList([nn.SyncBatchNorm(2)])
    with pytest.raises(Refusal) as error:
        processes[0](None, None, model)
    assert ('add `--cfg-options model.backbone.norm_cfg.type=BN '
            'model.auxiliary_head.0.norm_cfg.type=BN`') in str(error.value)


@pytest.mark.parametrize('installed, library', [
    (('mmseg', 'mmpretrain'), 'mmseg'),
    (('mmpretrain', ), 'mmpretrain'),
    ((), 'mmseg'),
])
def test_a_config_of_no_library(monkeypatch, installed, library):
    """Trained by the script of one that is installed."""
    monkeypatch.setattr(scripts, 'find_spec', lambda name: name
                        if name in installed else None)
    assert scripts.library_of(Config()) == library
