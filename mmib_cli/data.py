# Copyright (c) mmib contributors. All rights reserved.
"""Whether the data of a run are there, before anything is built."""
import inspect
import os.path as osp
from typing import Any, Iterator, Optional, Tuple

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS, Registry

from mmib.errors import Refusal


def check_data(cfg: Config, *stages: str) -> None:
    """Refuse a config whose data clearly aren't there: the library would say
    so after hundreds of lines of log.

    Args:
        cfg (Config): The config.
        *stages (str): What it is used for: ``'train'``, ``'val'``,
            ``'test'``.
    """
    found = missing_data(cfg, *stages)
    if found:
        _, path = found[0]
        options = ' '.join(f'{field}=FOLDER' for field, _ in found)
        raise Refusal(
            f'The data isn\'t there: {path} does not exist. Move or link it '
            'to this place, or say where it is: --cfg-options '
            f'{options}')


def missing_data(cfg: Config, *stages: str) -> list:
    """Return the dotted name and the value of each field that names a folder
    or a file of the data which isn't there. With the arguments of
    :func:`check_data`."""
    found: list = []
    scope = cfg.get('default_scope')
    with DATASETS.switch_scope_and_registry(scope) as registry:
        for stage in stages:
            loader = cfg.get(f'{stage}_dataloader')
            if loader and cfg.get(f'{stage}_cfg') is not None:
                found += _missing(
                    loader.get('dataset'), f'{stage}_dataloader.dataset',
                    registry)
    return found


def _missing(node: Any, where: str,
             registry: Registry) -> Iterator[Tuple[str, str]]:
    """The fields of a dataset, or of those that it wraps."""
    if not isinstance(node, dict):
        return
    if 'dataset' in node:
        yield from _missing(node['dataset'], f'{where}.dataset', registry)
    for i, part in enumerate(node.get('datasets') or ()):
        yield from _missing(part, f'{where}.datasets.{i}', registry)
    field = _missing_field(node)
    if field is not None:
        kind = node.get('type')
        kind = registry.get(kind) if isinstance(kind, str) else kind
        if _reads_files(kind):
            yield f'{where}.{field[0]}', field[1]


def _missing_field(node: dict) -> Optional[Tuple[str, str]]:
    """The first field of a dataset that names a place which isn't there, and
    the place. None where one of its places is there, as a dataset needn't
    read all of them, or may lie on another machine."""
    backend = node.get('backend_args') or node.get('file_client_args') or {}
    if backend.get('backend', 'local') not in ('local', 'disk'):
        return None
    root, prefix = node.get('data_root') or '', node.get('data_prefix') or {}
    if not isinstance(prefix, dict):
        prefix = {'': prefix}
    fields = dict(ann_file=node.get('ann_file') or '')
    fields.update({
        f'data_prefix.{key}'.rstrip('.'): value
        for key, value in prefix.items()
    })
    if not all(isinstance(each, str) for each in (root, *fields.values())):
        return None
    places = {
        field: osp.join(root, value)
        for field, value in fields.items() if value
    } or dict(data_root=root)
    # An address has a colon, and what has no name no place.
    if any(':' in place or not place or osp.exists(place)
           for place in places.values()):
        return None
    if not root:
        return None  # The class may have one of its own.
    return next(iter(places.items())) if osp.isdir(root) else ('data_root',
                                                               root)


def _reads_files(kind: Any) -> bool:
    """Whether a dataset reads files as MMEngine's do, and doesn't download
    or make them."""
    return (inspect.isclass(kind) and issubclass(kind, BaseDataset)
            and not any('download' in inspect.signature(each).parameters
                        for each in kind.__mro__[:-1]
                        if issubclass(each, BaseDataset)))
