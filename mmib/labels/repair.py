# Copyright (c) mmib contributors. All rights reserved.
"""Export masks to Label Studio, where people repair them, and read them back.

A repaired mask is the file of the dataset in which the changed pixels have
other numbers, and takes the place of the file with the same name.
"""
import json
import os
import os.path as osp
import shlex
import zlib
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import (Any, Dict, Iterable, Iterator, List, Optional, Sequence,
                    Tuple)
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import cv2
import numpy as np

from ..errors import Refusal
from .images import DatasetImages
from .masks import IGNORED, SUFFIXES, labels_of_numbers, read_mask, short_names
from .predictions import Predictor, compare
from .rankings import largest_region

_TASKS, _CLASSES = 'tasks.json', 'label_config.xml'
# Number of a class in masks, and its pixels.
Region = Tuple[int, np.ndarray]
# No number in a mask.
_NO_CLASS = 256


def numbers_of(reader: DatasetImages, images: Sequence[str]) -> List[int]:
    """Return the numbers of the images of a review. The review names images
    by number or path, whichever the page used."""
    numbers = {str(number): number for number in reader.numbers}
    # Of copies the first one.
    numbers.update(zip(reader.image_names()[::-1], reader.numbers[::-1]))
    lacking = [name for name in images if name not in numbers]
    if lacking:
        raise Refusal(
            f'{len(lacking)} of {len(images)} images that were judged wrong, '
            f'such as `{lacking[0]}`, aren\'t in this dataset of the config: '
            'give the --config, and the --data, that were ranked.')
    return [numbers[name] for name in images]


def export_tasks(reader: DatasetImages, numbers: Sequence[int], folder: str,
                 predict: Optional[Predictor]) -> None:
    """Write a new folder with images, masks, and predictions if there is a
    network, for Label Studio, and how to repair the masks there."""
    classes, labels_of = reader.classes, _labels_of(reader, numbers[0])
    if len({*classes}) < max(len(classes), 1):
        raise Refusal('The dataset has no names of classes, or two have one '
                      'name: set `metainfo=dict(classes=...)` of the dataset '
                      'in the config.')
    tasks = []
    with new_folder(folder) as new:
        for number, name, mask in _masks_of(reader, numbers, labels_of):
            info = reader.info(number)
            # Masks may share a stem, and images a mask.
            image = f'images/{osp.splitext(name)[0]}-{number}.png'
            _write(new / image, reader.read(number)['img'])
            _write(new / 'masks' / name, mask)
            data = dict(
                image=f'/data/local-files/?d={quote(os.fsencode(image))}',
                mask=name,
                ignored=reader.ignored,
                path=info.get('img_path'))
            task = dict(
                data=data, annotations=_result(labels_of[mask], classes))
            if predict is not None:
                predicted = predict(info).pred_sem_seg.data[0].cpu().numpy()
                # A class that the dataset lacks has no number in masks.
                predicted[~np.isin(predicted, labels_of)] = IGNORED
                task['predictions'] = _result(predicted, classes)
            tasks.append(task)
        (new / _TASKS).write_text(json.dumps(tasks), 'utf-8')
        (new / _CLASSES).write_text(
            _labelling_config(reader, labels_of.tolist()), 'utf-8')
        root = osp.abspath(folder)
        readme = Path(__file__).with_name('repair.txt').read_text('utf-8')
        (new / 'README.txt').write_bytes(
            os.fsencode(readme.format(root, shlex.quote(root))))


def export_ignored(reader: DatasetImages, numbers: Sequence[int], folder: str,
                   predict: Predictor) -> int:
    """Write a new folder of masks in which the suspect region of each image is
    ignored. Return how many images have one; other masks aren't written."""
    count, labels_of = 0, _labels_of(reader, numbers[0])
    with new_folder(folder) as new:
        for number, name, mask in _masks_of(reader, numbers, labels_of):
            info = dict(reader.info(number), gt_seg_map=labels_of[mask])
            region = largest_region(compare(predict(info), info)['gaps'])
            if region.any():
                mask[region] = reader.ignored
                _write(new / name, mask)
                count += 1
        if not count:
            raise Refusal(
                'No image that was judged wrong has a suspect region: the '
                'network agrees with the masks, or isn\'t sure. Give another '
                '--checkpoint, or leave these images out (`mmib train '
                '--without`).')
    return count


def _labels_of(reader: DatasetImages, number: int) -> np.ndarray:
    """Return the label that the dataset makes of each number in a mask, of
    shape (256,)."""
    labels = reader.read(number).get('gt_seg_map')
    if labels is None:
        raise Refusal(
            'The training pipeline of the config loads no masks: --export is '
            'for MMSegmentation.')
    labels_of = labels_of_numbers(
        lambda path: reader.read(number, path)['gt_seg_map'], labels.shape)
    if labels_of[reader.ignored] != IGNORED:
        raise Refusal(f'`LoadAnnotations` of the config takes {reader.ignored}'
                      ' for a class, so no pixel can be ignored.')
    return labels_of


def _masks_of(reader: DatasetImages, numbers: Sequence[int],
              labels_of: np.ndarray) -> Iterator[Tuple[int, str, np.ndarray]]:
    """The number of each image, and the name of its mask, which no other mask
    has, with the numbers in it, of which the dataset makes these labels."""
    paths = {
        n: str(reader.info(n).get('seg_map_path'))
        for n in reader.numbers
    }
    names = short_names(paths.values())
    for number in numbers:
        name = names[paths[number]]
        if not name.lower().endswith(SUFFIXES):
            raise Refusal(f'`seg_map_path` must end in {", ".join(SUFFIXES)}, '
                          f'which keep numbers, unlike {name}: convert masks.')
        # A file that can't be read stops the export here.
        labels = reader.read(number)['gt_seg_map']
        mask = read_mask(paths[number])
        if (labels_of[mask] != labels).any():
            raise Refusal(
                f'{name} has other labels than its numbers have in the first '
                'mask: the dataset\'s loader takes no files with one number a '
                'pixel, or its parts number classes differently (then export '
                'one by one).')
        yield number, name, mask


def _write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, image)[1].tobytes())


@contextmanager
def new_folder(folder: str) -> Iterator[Path]:
    """Make a folder that is there with all its files at the end, or not at
    all."""
    parent = osp.dirname(osp.abspath(folder))
    os.makedirs(parent, exist_ok=True)
    with TemporaryDirectory(prefix='.mmib-', dir=parent) as place:
        new = Path(place, 'new')
        new.mkdir()
        yield new
        os.rename(new, folder)


def _brush() -> Any:
    """The module that packs and unpacks the brush strokes of Label Studio."""
    try:
        from label_studio_sdk.converter import brush
    except ModuleNotFoundError as error:
        raise Refusal(f'Masks of Label Studio need {error.name}, which isn\'t '
                      'installed: pip install label-studio-sdk') from error
    return brush


def _result(labels: np.ndarray, classes: Sequence[str]) -> List[dict]:
    """Labels of pixels as the annotations or predictions of a task."""
    return [
        dict(result=[
            dict(
                id=f'class{number}',
                from_name='label',
                to_name='image',
                type='brushlabels',
                original_width=labels.shape[1],
                original_height=labels.shape[0],
                image_rotation=0,
                value=dict(
                    format='rle',
                    rle=_brush().mask2rle(255 * np.uint8(labels == number)),
                    brushlabels=[classes[number]]))
            for number in np.unique(labels[labels < len(classes)]).tolist()
        ])
    ]


def _labelling_config(reader: DatasetImages, labels_of: List[int]) -> str:
    """The classes in colours. The category of a class is its lowest number in
    masks, because classes may be merged. Repaired masks have this number."""
    classes = ''.join(
        f'    <Label value={quoteattr(name)} category="'
        f'{labels_of.index(label)}" '
        'background="#{:02x}{:02x}{:02x}"/>\n'.format(*reader.palette[label])
        for label, name in enumerate(reader.classes) if label in labels_of)
    return ('<View>\n  <Header value="$path"/>\n'
            '  <Image name="image" value="$image"/>\n'
            '  <BrushLabels name="label" toName="image">\n'
            f'{classes}  </BrushLabels>\n</View>\n')


def masks_in(folder: str) -> str:
    """Return the folder of masks to train on: the given one, or of a folder
    for Label Studio one within it, which is made of the JSON file that Label
    Studio has exported into it.

    Raises:
        Refusal: If the file can't be used.
    """
    if not osp.exists(osp.join(folder, _TASKS)):
        return folder
    files = [
        path for path in Path(folder).glob('*.json') if path.name != _TASKS
    ]
    if len(files) != 1:
        raise Refusal(
            f'{folder} has {len(files) or "no"} JSON files of Label Studio: '
            f'put the last one that it has exported beside {_TASKS}, alone.')
    out = Path(folder, f'repaired-{zlib.crc32(files[0].read_bytes()):08x}')
    if not out.is_dir():
        masks = _repaired(Path(folder), files[0])
        try:
            with new_folder(str(out)) as new:
                for name, mask in masks.items():
                    _write(new / name, mask)
        except OSError:
            # Another process of the same run may have been faster.
            if not out.is_dir():
                raise
    return str(out)


def _repaired(folder: Path, file: Path) -> Dict[str, np.ndarray]:
    """The masks that Label Studio has exported by name, except those that are
    as before."""
    try:
        sent = {
            task['data']['mask']: task
            for task in json.loads((folder / _TASKS).read_bytes())
        }
        # Somebody may have skipped an image.
        results = [(sent[task['data']['mask']], each['result'])
                   for task in json.loads(file.read_bytes())
                   for each in task['annotations']
                   if not each.get('was_cancelled')]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Refusal(f'{file} is not an export of the images that came from '
                      'here: export the project of this folder alone, in the '
                      'format JSON and no other one.') from error
    classes = {
        label.attrib['value']: int(label.attrib['category'])
        for label in ElementTree.parse(folder / _CLASSES).iter('Label')
    }
    masks: Dict[str, np.ndarray] = {}
    for task, result in results:
        name = task['data']['mask']
        where = f'{name} in {file}'
        if not result:
            raise Refusal(f'{where} has no class in any pixel: skip the image '
                          'in Label Studio, or leave it out with --without.')
        before = read_mask(folder / 'masks' / name)
        drawn, old = (
            _regions(regions, before.shape, classes, where)
            for regions in (result, task['annotations'][0]['result']))
        mask = painted(drawn, old, before,
                       task['data'].get('ignored', IGNORED))
        # As it was sent, and another annotation may be repaired.
        if (mask == before).all():
            continue
        if (mask != masks.setdefault(name, mask)).any():
            raise Refusal(f'{where} has two annotations that differ: delete '
                          'one of them in Label Studio, and export again.')
    if not masks:
        raise Refusal(f'{file} has no repaired mask: all are as they were '
                      'sent. Submit or update the annotations in Label '
                      'Studio, and export again.')
    print(f'{file} has {len(masks)} repaired masks of {len(sent)} that were '
          'sent. The others stay as they are.')
    return masks


def painted(drawn: Iterable[Region], sent: Iterable[Region],
            before: np.ndarray, ignored: int) -> np.ndarray:
    """Return the mask that brush strokes make. Pixels that had a class and
    have none are ignored.

    A stroke in Label Studio hides others, and takes no pixel from them. So in
    a pixel with two classes the one that was not there before wins, then the
    later one. A pixel whose class stays keeps its number, as do pixels of
    classes that aren't trained.

    Args:
        drawn (Iterable[tuple]): Number and pixels of each class. The pixels
            are bool of shape (H, W).
        sent (Iterable[tuple]): The same before.
        before (np.ndarray): The mask before, uint8 of shape (H, W). Other
            numbers may stand for the same class.
        ignored (int): The number of pixels of no class.

    Returns:
        np.ndarray: The mask, uint8 of shape (H, W).
    """
    old = np.full(before.shape, _NO_CLASS)
    for number, pixels in sent:
        old[pixels] = number
    mask, is_drawn = before.copy(), np.zeros(before.shape, bool)
    for number, pixels in drawn:
        mask[pixels & (old != number)] = number
        is_drawn |= pixels
    mask[(old != _NO_CLASS) & ~is_drawn] = ignored
    return mask


def _regions(result: Sequence[dict], shape: Tuple[int, ...],
             classes: Dict[str, int], where: str) -> Iterator[Region]:
    """Number and pixels of the class of each region in an annotation."""
    for region in result:
        value = region.get('value') or {}
        names = value.get('brushlabels') or ['no class']
        if (value.get('format') != 'rle'
                or names not in [[name] for name in classes]):
            raise Refusal(
                f'{where} has a {region.get("type")} of {", ".join(names)}: '
                'mark pixels with the brush alone, each with one class of '
                f'{", ".join(classes)}.')
        size = region.get('original_height'), region.get('original_width')
        if size != shape:
            raise Refusal(f'{where} has {size} pixels, and the image has '
                          f'{shape}: an image must not be exchanged.')
        # The last of four channels is the opacity of a stroke.
        pixels = _brush().decode_rle(value['rle']).reshape(*shape, 4)
        yield classes[names[0]], pixels[..., 3] > 127
