# Copyright (c) mmib contributors. All rights reserved.
"""The arguments of each command.

They stand apart from what the commands do: nothing here imports torch or
MMEngine, so that help and mistyped options take no seconds.
"""
import argparse
from argparse import ArgumentParser, Namespace
from importlib import import_module
from typing import Any, List, Optional, Sequence, Tuple, Union

_CONFIG = ('Path of the config, or its name, such as '
           'mmseg::upernet/upernet_r50_4xb4-160k_ade20k-512x512, '
           'mmpretrain::resnet/resnet18_8xb16_cifar10, '
           'mmdet::retinanet/retinanet_r50_fpn_1x_coco, or mmib:: and the '
           'name of a config of mmib.')
_CONVERT = """
Write a config that trains with InfoBatch. A schedule that counts iterations is
shorter then, and of one that counts epochs each epoch is.

The command prints what that saves and what changes. The file is short,
inherits CONFIG, and trains with the library's own tools/train.py, from any
folder.
"""
_SHORTEN = """
Write the control that pruning has to beat: CONFIG with a shorter schedule, and
with SGD the longer steps of a pruned run. With --steps 1 nothing changes but
the schedule, and the file has no part of mmib in it.
"""
_FORECAST = """
Say what a run will save and what that costs, without training. CONFIG has
InfoBatch already, or --infobatch converts it as `mmib train` does. The
dataset is read for the length of a pass, if the data is there.
"""
_TRAIN = """
Train a model of MMSegmentation, MMPretrain or MMDetection, or any model of
MMEngine: the library's own tools/train.py with mmib's parts registered, so
with the same options and a few more. The library is that of the
`default_scope` of CONFIG; any of them trains a config that names none.
"""
_TEST = """
Test a checkpoint of MMSegmentation, MMPretrain or MMDetection: the library's
own tools/test.py with mmib's parts registered, so with the same options.
"""
_REPORT = """
Write one HTML file that shows a run: what was saved, metrics, and what was
pruned. It opens without a server. The run may be finished, running or stopped.
The config in its folder is code, and is run. `mmib rank` shows the images.
"""
_RANK = """
Rank the images of a dataset by how unlike their labels the predictions of a
finished network are, to find wrong labels: of MMSegmentation, MMPretrain and
MMDetection, trained with or without mmib. The command writes a page to look at
the images and judge them, a table of all images, and for a detector one of
suspicious boxes. `--rank-by score` ranks by the scores of a run with mmib
instead, of any model. Nothing is trained. CONFIG is code, and is run.
"""
_REVIEW = """
Say what a review has found, and what to expect of the next images.

A review.csv is what a page of `mmib rank` saves. Those of several people are
merged. An image of which they say different things counts as unsure, and one
that they give different labels stays wrong without a label, until somebody
changes a file. The masks of wrong images can be exported, to be repaired with
Label Studio.
"""
_DEMO = """
Draw a dataset, train a small UperNet with InfoBatch on it, say what that
saved, and write a page that shows it. The demo takes two minutes on a CPU,
needs MMSegmentation, and writes to work_dirs/demo.
"""
_ENV = """
Print the versions of the packages and what MMEngine knows of the machine, for
a bug report.
"""


class CfgOptions(argparse.Action):
    """MMEngine's action for ``--cfg-options``, imported where it is used."""

    def __call__(self,
                 parser: ArgumentParser,
                 namespace: Namespace,
                 values: Union[str, Sequence[Any], None],
                 option_string: Optional[str] = None) -> None:
        action = import_module('mmengine.config').DictAction
        try:
            action(self.option_strings, self.dest)(parser, namespace, values,
                                                   option_string)
        except ValueError:
            parser.error('--cfg-options: write KEY=VALUE, without spaces '
                         f'around the =, but got {values}')


def _ranking(name: str) -> str:
    """Check the name of a ranking, all of which need the stack."""
    names = import_module('mmib.labels.rankings').RANKINGS
    if name not in names:
        raise argparse.ArgumentTypeError(
            f'{name} is not a ranking: give one of {", ".join(names)}')
    return name


def _number(least: int) -> Any:
    """The type of a whole number that isn't below another one."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f'give {least} or more, but got {text}')
        return int(text)

    return number


def _parser(command: str, text: str, **others: Any) -> ArgumentParser:
    """A parser that shows a text as it is written."""
    return ArgumentParser(
        prog=f'mmib {command}',
        description=text.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **others)


def _add_config(parser: ArgumentParser) -> None:
    parser.add_argument('config', metavar='CONFIG', help=_CONFIG)


def _add_flags(parser: Any, **flags: str) -> None:
    """Add options without a value by their names, with a text each."""
    for name, text in flags.items():
        parser.add_argument(
            f'--{name.replace("_", "-")}', action='store_true', help=text)


def _add_values(parser: Any, **options: Tuple[str, str]) -> None:
    """Add options by their names, with what the value is called and a text
    each."""
    for name, (metavar, text) in options.items():
        parser.add_argument(
            f'--{name.replace("_", "-")}', metavar=metavar, help=text)


def _add_cfg_options(parser: Any, more: str = '') -> None:
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=CfgOptions,
        default={},
        metavar='KEY=VALUE',
        help='Change the config, as in train_dataloader.batch_size=8. '
        f'{more}Default: nothing is changed.')


def _add_verbose(parser: ArgumentParser) -> None:
    parser.add_argument(
        '-v',
        '--verbose',
        action='store_true',
        help='Also list the fields that every conversion changes, such as '
        'custom_imports. Default: list the others.')


def _add_ratio(parser: ArgumentParser, default: str) -> None:
    parser.add_argument(
        '--ratio',
        type=float,
        help='Train in this share of the iterations: with 0.6 you train in '
        f'60 %% of them. Default: {default}.')


def _add_steps(parser: ArgumentParser) -> None:
    parser.add_argument(
        '--steps',
        type=float,
        metavar='SCALE',
        help='Make the steps of the control so many times as long where the '
        'pruned run prunes: with 1 they stay those of CONFIG. Default: as '
        'long as in the pruned run, which with SGD is the mean weight of a '
        'plan.')


def _add_policy(parser: ArgumentParser) -> None:
    parser.add_argument(
        '--delta',
        type=float,
        help='Prune in this fraction of the run, and train on all images '
        'in the rest. Default: 0.85.')
    _add_values(
        parser,
        policy=('TYPE', 'Choose which images are left out by another policy. '
                'Its arguments may follow: "QuantileTiers(quantiles=(0.2, '
                '0.85))". Default: Neyman, which learns while it trains which '
                'images to leave out.'))


def _add_conversion(parser: ArgumentParser) -> None:
    _add_ratio(parser, 'that of the policy: 0.6, of MeanThreshold 0.8')
    _add_policy(parser)
    _add_values(
        parser,
        subset=('FILE', 'Train on the images that this file lists, and on no '
                'others. Default: all images.'),
        without=('FILE', 'Leave out the images that this file lists, or those '
                 'that a review.csv judged wrong. Default: none is left out.'),
        relabel=('FILE', 'Train with the right labels of a review.csv, and '
                 'leave out the images that it judged wrong without a label. '
                 'Default: the labels of the dataset.'),
        repaired=('DIR',
                  'Train on the masks in this folder, which replace the '
                  'masks of the same names: the folder of `mmib review '
                  '--export` with what Label Studio has exported, or any '
                  'folder of masks. Default: the masks of the dataset.'))
    _add_verbose(parser)


def _add_out(parser: ArgumentParser) -> None:
    _add_config(parser)
    parser.add_argument(
        'out',
        metavar='OUT',
        help='The .py file to write, or a folder, in which the file gets a '
        'name that says its length.')


def convert() -> ArgumentParser:
    """Return the parser of ``mmib convert``."""
    parser = _parser('convert', _CONVERT)
    _add_conversion(parser)
    _add_out(parser)
    return parser


def shorten() -> ArgumentParser:
    """Return the parser of ``mmib shorten``."""
    parser = _parser('shorten', _SHORTEN)
    _add_ratio(parser, '0.6')
    _add_steps(parser)
    _add_policy(parser)
    _add_verbose(parser)
    _add_out(parser)
    return parser


def forecast() -> ArgumentParser:
    """Return the parser of ``mmib forecast``."""
    parser = _parser('forecast', _FORECAST)
    _add_config(parser)
    _add_flags(
        parser,
        infobatch='Convert CONFIG first. Default: CONFIG has InfoBatch '
        'already.')
    _add_conversion(parser)
    parser.add_argument(
        '--gpus',
        type=_number(1),
        default=1,
        metavar='N',
        help='Forecast a run on so many GPUs, each with the batch size '
        'of CONFIG. Default: %(default)s.')
    _add_flags(
        parser,
        json='Print the forecast as JSON, for a program. Default: sentences.')
    _add_cfg_options(parser)
    return parser


def mmib_train() -> ArgumentParser:
    """Return the parser of the options of ``mmib train`` that are mmib's."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    _add_flags(
        parser,
        infobatch='Convert CONFIG, of the baseline, and train it with '
        'InfoBatch. Without --work-dir the folder has the name of the '
        'converted config. Default: CONFIG is trained as it is.',
        shorten='Train the control that pruning has to beat, which is as '
        'short, has as long steps and prunes nothing. Default: CONFIG is '
        'trained as it is.',
        score='Train the baseline as it is, and score its images for `mmib '
        'rank --rank-by score`. Default: no scores are kept.')
    _add_steps(parser)
    _add_conversion(parser)
    return parser


def train() -> ArgumentParser:
    """Return the parser of ``mmib train``."""
    parser = _parser(
        'train',
        _TRAIN,
        usage='mmib train CONFIG [options]',
        allow_abbrev=False,
        parents=[mmib_train()])
    _add_config(parser)
    group = parser.add_argument_group("options of the library's script")
    _add_script(
        group, 'With --infobatch and --shorten this changes the config that '
        'they make: train_cfg.max_iters=100 moves nothing else. ')
    group.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='FILE',
        help='Go on from the checkpoint FILE, or without FILE from the last '
        'one in the work folder. Default: the training begins.')
    _add_flags(
        group,
        amp='Train with mixed precision. Default: that of CONFIG.',
        auto_scale_lr='Scale the learning rate by the batch size '
        '(MMPretrain, MMDetection). Default: it stays.',
        no_validate='Train without validation (MMPretrain). Default: validate '
        'as CONFIG says.',
        no_pin_memory='Pin no memory for the data (MMPretrain). Default: '
        'memory is pinned.',
        no_persistent_workers='Start the workers of the data anew in each '
        'epoch (MMPretrain). Default: they stay.')
    return parser


def test() -> ArgumentParser:
    """Return the parser of ``mmib test``."""
    parser = _parser(
        'test',
        _TEST,
        usage='mmib test CONFIG CHECKPOINT [options]',
        allow_abbrev=False)
    _add_config(parser)
    parser.add_argument(
        'checkpoint', metavar='CHECKPOINT', help='File with the weights.')
    group = parser.add_argument_group("options of the library's script")
    _add_script(group)
    _add_values(
        group,
        out=('PATH', 'Write the predictions to this place. Default: none are '
             'written.'),
        out_item=('ITEM', 'Write `pred` or `metrics` to --out (MMPretrain). '
                  'Default: the metrics.'),
        show_dir=('DIR', 'Write painted images to this folder. Default: none '
                  'are written.'),
        wait_time=('SECONDS', 'Show each image for so long. Default: 2.'),
        interval=('N', 'Show or write one of so many images (MMPretrain). '
                  'Default: 1.'))
    _add_flags(
        group,
        show='Show painted images in a window. Default: none.',
        tta='Predict with the test-time augmentation of CONFIG. Default: '
        'without.',
        amp='Test with mixed precision (MMPretrain). Default: without.',
        no_pin_memory='Pin no memory for the data (MMPretrain). Default: '
        'memory is pinned.')
    return parser


def _add_script(group: Any, of_options: str = '') -> None:
    """Add the options that the scripts of all libraries have."""
    _add_values(
        group,
        work_dir=('DIR', 'Write logs and checkpoints to this folder. Default: '
                  'work_dirs/ and the name of the config.'))
    group.add_argument(
        '--launcher',
        choices=('none', 'pytorch', 'slurm', 'mpi'),
        default='none',
        help='Say how the processes were started, as tools/dist_train.sh '
        'does. Default: %(default)s, one process.')
    group.add_argument(
        '--local-rank', '--local_rank', type=int, help=argparse.SUPPRESS)
    _add_cfg_options(group, of_options)


def report() -> ArgumentParser:
    """Return the parser of ``mmib report``."""
    parser = _parser('report', _REPORT)
    parser.add_argument(
        'work_dir', metavar='WORK_DIR', help='Folder of the run.')
    parser.add_argument(
        '--compare',
        nargs='+',
        default=(),
        metavar='WORK_DIR',
        help='Show other runs beside it, such as the baseline with '
        'several seeds. Default: none.')
    _add_values(
        parser,
        out=('FILE', 'Write the page to this file. Default: report.html in '
             'WORK_DIR.'),
        image=('PATH', 'Print why the newest plan kept this image or left it '
               'out, and write no page; the end of a path or a number is '
               'enough. Default: write the page.'))
    return parser


def rank() -> ArgumentParser:
    """Return the parser of ``mmib rank``."""
    parser = _parser('rank', _RANK)
    _add_config(parser)
    parser.add_argument(
        'checkpoint', metavar='CHECKPOINT', help='File with the weights.')
    _add_split(parser, 'Rank the images of this data loader of CONFIG.')
    parser.add_argument(
        '--rank-by',
        type=_ranking,
        metavar='RANKING',
        help='Rank by `pixels`, the mean of the highest 5 %% of the pixel '
        'losses; by `regions`, the largest area in which the network is sure '
        'of another class than the label; by `margin`, how far another class '
        'is above the label; by `missing`, predicted boxes that no label '
        'overlaps; by `unsupported`, labelled boxes that no prediction '
        'overlaps well; by `other_class`, labelled boxes that are predicted '
        'as another class; or by `score`, of a run with mmib. Default: '
        '`pixels` for segmentation, `margin` for classification, and '
        '`missing` for detection.')
    parser.add_argument(
        '--images',
        type=_number(0),
        default=30,
        metavar='N',
        help='Show so many images of each end of the ranking. Default: '
        '%(default)s.')
    _add_values(
        parser,
        out=('DIR', 'Write the page and the table to this folder. Default: '
             'that of CHECKPOINT.'))
    parser.add_argument(
        '--review',
        nargs='+',
        default=(),
        metavar='FILE',
        help='Leave out the images that these review.csv files have judged. '
        'Default: all are shown.')
    _add_cfg_options(parser)
    return parser


def _add_split(parser: ArgumentParser, text: str) -> None:
    parser.add_argument(
        '--data',
        choices=('train', 'val', 'test'),
        default='train',
        help=f'{text} Default: %(default)s.')


def review() -> ArgumentParser:
    """Return the parser of ``mmib review``."""
    parser = _parser('review', _REVIEW)
    parser.add_argument(
        'files',
        nargs='+',
        metavar='FILE',
        help='The review.csv of each reviewer.')
    _add_values(
        parser,
        out=('FILE', 'Write the merged review to this file. Default: it is '
             'not written.'),
        list=('FILE', 'Write the images that were judged wrong to this file, '
              'one per line. Default: they are not written.'),
        export=('DIR', 'Write the masks that were judged wrong to this new '
                'folder, to repair them with Label Studio: README.txt there '
                'says how. Default: no masks are written. The options below '
                'are for --export.'),
        config=('CONFIG', 'Export the masks of the run with this config. '
                'Default: none, and --export needs one.'))
    _add_split(parser, 'Export the masks of this data loader of the config.')
    _add_values(
        parser,
        checkpoint=('FILE', 'Begin the repair with predictions of this '
                    'network. Default: with the masks alone.'))
    _add_flags(
        parser,
        ignore='Get masks in which the region that the network contradicts '
        'most is ignored, instead of a repair. Default: the masks as they '
        'are.')
    _add_cfg_options(parser)
    return parser


def demo() -> ArgumentParser:
    """Return the parser of ``mmib demo``."""
    return _parser('demo', _DEMO)


def env() -> ArgumentParser:
    """Return the parser of ``mmib env``."""
    return _parser('env', _ENV)


def parse(command: str, args: List[str]) -> Namespace:
    """Parse the arguments of a command.

    Returns:
        Namespace: The arguments. Those of a command that runs a script of a
        library also have ``args``, as they were given, ``script_args``, those
        for the script, and ``parser``.
    """
    parser = globals()[command]()
    if command not in ('train', 'test'):
        return parser.parse_args(args)
    parsed, unknown = parser.parse_known_args(args)
    # What no option precedes is the value of none.
    if unknown and not unknown[0].startswith('-'):
        parser.error(f'unrecognized arguments: {unknown[0]}')
    parsed.args, parsed.parser, parsed.script_args = args, parser, args
    if command == 'train':
        _, parsed.script_args = mmib_train().parse_known_args(args)
    return parsed
