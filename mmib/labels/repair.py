# Copyright (c) mmib contributors. All rights reserved.
"""Masks go to Label Studio, which people repair them with, and come back.

All masks in files have the numbers and names that the data set's own ones
have: a repaired one takes the place of the one with the same name.
"""
import json
import os
import os.path as osp
import zlib
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Dict, Iterator, List, Optional, Sequence, Tuple
from urllib.parse import quote
from xml.etree import ElementTree

import cv2
import numpy as np

from ..data.masks import SUFFIXES, short_names
from ..errors import Refusal
from .images import IGNORED, TrainingImages
from .predictions import Predictor, probabilities_of
from .rankings import suspect_region

_TASKS, _CLASSES = 'tasks.json', 'label_config.xml'
_README = """To repair these masks with Label Studio (pip install label-studio):

1. LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true \\
   LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={0} label-studio start
2. Create Project > Labeling Setup > Custom template: put in the text of
   label_config.xml.
3. Settings > Cloud Storage > Add Source Storage > Local files, with the
   absolute path {0}/images. Add it, and don't sync.
4. Import > tasks.json.
5. Repair masks. A pixel that gets another class by a stroke has this class;
   erasing the old one isn't needed. A pixel without a class is ignored.
6. Export > JSON, and put the file into this folder.
7. mmib train CONFIG --repaired {0}
"""


def find_wrong(reader: TrainingImages, images: Sequence[str]) -> List[int]:
    """Numbers of the images of a review, which has their paths or numbers."""
    numbers = {
        name: number
        for number, path in zip(reader.numbers, reader.paths())
        for name in (str(number), path)
    }
    lacking = [name for name in images if name not in numbers]
    if lacking:
        raise Refusal(
            f'{len(lacking)} of {len(images)} images that were judged wrong '
            f'aren\'t in the training data of the config, such as '
            f'`{lacking[0]}`: give the --config of the training that was '
            'reviewed.')
    return [numbers[name] for name in images]


def export_tasks(reader: TrainingImages, numbers: Sequence[int], folder: str,
                 predict: Optional[Predictor]) -> None:
    """Write a new folder with images, masks, and predictions if there is a
    network, for Label Studio, and how to repair them there."""
    names, files = _names(reader, numbers), _MaskFiles(reader, numbers[0])
    if not reader.classes:
        raise Refusal('The data set doesn\'t tell its classes: add '
                      '`metainfo=dict(classes=...)` to it in the config.')
    tasks = []
    with new_folder(folder) as new:
        for number, name in zip(numbers, names):
            image = f'images/{osp.splitext(name)[0]}.png'
            _write(new / image, reader.read(number)['img'])
            labels = files.copy(number, new / 'masks' / name)
            data = dict(
                image=f'/data/local-files/?d={quote(image)}',
                mask=name,
                path=reader.info(number).get('img_path'))
            task = dict(
                data=data, annotations=[_result(labels, reader.classes)])
            if predict is not None:
                sample = predict(reader.info(number))
                predicted = probabilities_of(sample).argmax(0).astype(np.uint8)
                files.write(predicted, new / 'predictions' / name)
                task['predictions'] = [_result(predicted, reader.classes)]
            tasks.append(task)
        (new / _TASKS).write_text(json.dumps(tasks), 'utf-8')
        _write_classes(reader, files.table, new / _CLASSES)
        (new / 'README.txt').write_text(
            _README.format(osp.abspath(folder)), 'utf-8')


def export_ignored(reader: TrainingImages, numbers: Sequence[int], folder: str,
                   predict: Predictor) -> int:
    """Write a new folder of masks in which the suspect region of each image is
    ignored. Returns how many images have one; other masks aren't written."""
    names, files = _names(reader, numbers), _MaskFiles(reader, numbers[0])
    count = 0
    with new_folder(folder) as new:
        for number, name in zip(numbers, names):
            labels = files.labels(number)
            region = suspect_region(
                probabilities_of(predict(reader.info(number))), labels)
            if region.any():
                labels[region] = IGNORED
                files.write(labels, new / name)
                count += 1
        if not count:
            raise Refusal(
                'No image that was judged wrong has a suspect region: the '
                'network agrees with the masks, or isn\'t sure. Give a '
                '--checkpoint that was trained longer, or leave these images '
                'out (`mmib train --without`).')
    return count


class _MaskFiles:
    """Writes masks with the numbers that the files of a data set have."""

    def __init__(self, reader: TrainingImages, number: int) -> None:
        self._reader = reader
        labels = self.labels(number)
        # What the loader makes of each number tells which one to write.
        written = np.resize(np.arange(256, dtype=np.uint8), labels.shape)
        with TemporaryDirectory() as folder:
            path = osp.join(folder, 'numbers.png')
            _write(Path(path), written)
            loaded = reader.read(number, path)['gt_seg_map']
        self.table = np.full(256, IGNORED, np.uint8)
        """np.ndarray: The number in a file for each label, uint8 of shape
        (256,); the lowest where there are several."""
        for label in np.unique(loaded):
            self.table[label] = written[loaded == label].min()
        self.table[IGNORED] = IGNORED
        if (loaded[written == IGNORED] != IGNORED).any():
            raise Refusal(f'The number {IGNORED} in a mask isn\'t ignored by '
                          '`LoadAnnotations` of the config, so no pixel can '
                          'be left without a class.')

    def labels(self, number: int) -> np.ndarray:
        """The labels of an image as a training has them."""
        labels = self._reader.read(number).get('gt_seg_map')
        if labels is None:
            raise Refusal('The training data of the config have no masks: '
                          '--export is for MMSegmentation.')
        return labels

    def write(self, labels: np.ndarray, path: Path) -> None:
        """Write labels as a mask."""
        _write(path, self.table[labels])

    def copy(self, number: int, path: Path) -> np.ndarray:
        """Write the mask of an image, and return its labels."""
        labels = self.labels(number)
        self.write(labels, path)
        again = self._reader.read(number, str(path))['gt_seg_map']
        if not np.array_equal(labels, again):
            raise Refusal(
                f'The mask of {path.name} has other labels when it is written '
                'and read again: the data set\'s loader takes no file with '
                'one number a pixel, or its parts number classes differently '
                '(then export them one by one).')
        return labels


def _names(reader: TrainingImages, numbers: Sequence[int]) -> List[str]:
    """The names of masks, the ends of their paths that tell them apart."""
    paths = {n: reader.info(n).get('seg_map_path') for n in reader.numbers}
    if None in paths.values():
        raise Refusal('The data set doesn\'t tell `seg_map_path` of its '
                      'images: --export is for MMSegmentation.')
    names = short_names(paths.values())
    names = [names[paths[number]] for number in numbers]
    for name in names:
        if osp.splitext(name)[1].lower() not in SUFFIXES:
            raise Refusal(f'The mask {name} is of a format that may change '
                          f'numbers: convert masks to {SUFFIXES[0]}.')
    return names


@contextmanager
def new_folder(folder: str) -> Iterator[Path]:
    """A folder that will be there with all its files, or not at all."""
    if osp.lexists(folder) and not (osp.isdir(folder)
                                    and not os.listdir(folder)):
        raise Refusal(f'{folder} is there already: give --export a new or an '
                      'empty folder.')
    parent = osp.dirname(osp.abspath(folder))
    os.makedirs(parent, exist_ok=True)
    with TemporaryDirectory(prefix='.mmib-', dir=parent) as place:
        new = Path(place, 'new')
        new.mkdir()
        yield new
        if osp.isdir(folder):
            os.rmdir(folder)
        os.rename(new, folder)


def _write(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, image)[1].tobytes())


def _brush() -> ModuleType:
    """What packs and unpacks the brush strokes of Label Studio."""
    try:
        from label_studio_sdk.converter import brush
    except ModuleNotFoundError as error:
        raise Refusal(f'Masks of Label Studio need {error.name}, which isn\'t '
                      "installed: pip install 'mmib[repair]'") from error
    return brush


def _result(labels: np.ndarray, classes: Sequence[str]) -> dict:
    """Labels of pixels as an annotation or prediction of Label Studio."""
    height, width = labels.shape
    regions = []
    for number in np.unique(labels[labels < len(classes)]).tolist():
        rle = _brush().mask2rle(255 * (labels == number).astype(np.uint8))
        regions.append(
            dict(
                id=f'class{number}',
                from_name='label',
                to_name='image',
                type='brushlabels',
                original_width=width,
                original_height=height,
                image_rotation=0,
                value=dict(
                    format='rle', rle=rle, brushlabels=[classes[number]])))
    return dict(result=regions)


def _write_classes(reader: TrainingImages, table: np.ndarray,
                   path: Path) -> None:
    """Write the labelling config. The category of a class is its number in
    masks."""
    view = ElementTree.Element('View')
    ElementTree.SubElement(view, 'Header', value='$path')
    ElementTree.SubElement(view, 'Image', name='image', value='$image')
    brush = ElementTree.SubElement(
        view, 'BrushLabels', name='label', toName='image')
    for name, number, colour in zip(reader.classes, table.tolist(),
                                    reader.palette.tolist()):
        if number != IGNORED:
            ElementTree.SubElement(
                brush,
                'Label',
                value=name,
                background='#{:02x}{:02x}{:02x}'.format(*colour),
                category=str(number))
    ElementTree.ElementTree(view).write(path, 'utf-8')


def masks_in(folder: str) -> str:
    """The folder of masks to train on: the given one, or of a folder for Label
    Studio one within it, which is made of the JSON file that Label Studio has
    exported into it.

    Raises:
        Refusal: If the file can't be used.
    """
    if not osp.exists(osp.join(folder, _TASKS)):
        return folder
    files = [path for path in Path(folder).glob('*.json')
             if path.name != _TASKS]
    if len(files) != 1:
        raise Refusal(
            f'{folder} has {len(files) or "no"} JSON files of Label Studio: '
            f'put the last one that it has exported beside {_TASKS}, alone.')
    data = files[0].read_bytes()
    out = Path(folder, f'repaired-{zlib.crc32(data):08x}')
    if out.is_dir():
        return str(out)
    masks, sent = _repaired(Path(folder), files[0], data)
    print(f'{files[0]}: {len(masks)} of {sent} masks are repaired, the others '
          'stay as they are.')
    try:
        with new_folder(str(out)) as new:
            for name, mask in masks.items():
                _write(new / name, mask)
    # Another process of the same training was faster.
    except OSError:
        if not out.is_dir():
            raise
    return str(out)


def _repaired(folder: Path, file: Path,
              data: bytes) -> Tuple[Dict[str, np.ndarray], int]:
    """The masks that Label Studio has exported, by name, but for those that
    are as before; and how many were sent."""
    try:
        sent = {
            task['data']['mask']
            for task in json.loads((folder / _TASKS).read_text('utf-8'))
        }
        tasks = [(task['data'].get('mask'), task['annotations'])
                 for task in json.loads(data)]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Refusal(f'{file} is no export of Label Studio: choose the '
                      'format JSON there, and no other one.') from error
    classes = {
        label.attrib['value']: int(label.attrib['category'])
        for label in ElementTree.parse(folder / _CLASSES).iter('Label')
    }
    masks: Dict[str, np.ndarray] = {}
    for name, annotations in tasks:
        if name not in sent:
            raise Refusal(f'{file} has an image that wasn\'t sent from here, '
                          f'with the mask {name}: export the project of this '
                          'folder alone.')
        before = cv2.imread(str(folder / 'masks' / name), cv2.IMREAD_UNCHANGED)
        for annotation in annotations:
            # Somebody has skipped the image.
            if annotation.get('was_cancelled'):
                continue
            where = f'{name} in {file}'
            mask = painted(annotation['result'], before, classes, where)
            if np.array_equal(mask, before):
                continue
            if not np.array_equal(mask, masks.setdefault(name, mask)):
                raise Refusal(f'{where} has two annotations that differ: '
                              'delete one of them in Label Studio, and export '
                              'again.')
    if not masks:
        raise Refusal(f'{file} has no repaired mask: all are as they were '
                      'sent. Submit or update the annotations in Label '
                      'Studio, and export again.')
    return masks, len(sent)


def painted(result: Sequence[dict], before: np.ndarray,
            classes: Dict[str, int], where: str) -> np.ndarray:
    """The mask that the brush strokes of an annotation make. Pixels in no
    class are ignored.

    A stroke in Label Studio hides others, and takes no pixel from them. So in
    a pixel with two classes the one that was not there before wins, then the
    later one.

    Args:
        result (Sequence[dict]): The regions of the annotation.
        before (np.ndarray): The mask before, uint8 of shape (H, W).
        classes (dict[str, int]): Number of each class in masks.
        where (str): What the annotation is of, for errors.

    Returns:
        np.ndarray: The mask, uint8 of shape (H, W).

    Raises:
        Refusal: If a region isn't of this mask or its classes.
    """
    regions = [_region(each, before.shape, classes, where) for each in result]
    if not regions:
        raise Refusal(f'{where} has no class in any pixel: skip the image in '
                      'Label Studio, or leave it out with --without.')
    mask = np.where(np.isin(before, [*classes.values()]), IGNORED, before)
    for is_new in (False, True):
        for number, region in regions:
            mask[region & ((before != number) == is_new)] = number
    return mask.astype(np.uint8)


def _region(region: dict, shape: Tuple[int, ...], classes: Dict[str, int],
            where: str) -> Tuple[int, np.ndarray]:
    """Number and pixels of the class of a region."""
    value = region.get('value') or {}
    if value.get('format') != 'rle' or len(value.get('brushlabels', ())) != 1:
        raise Refusal(f'{where} has a {region.get("type")} that isn\'t of one '
                      'class: mark pixels with the brush alone.')
    name, = value['brushlabels']
    if name not in classes:
        raise Refusal(f'{where} has the class {name}, which is none of '
                      f'{", ".join(classes)}: correct it in Label Studio.')
    size = region.get('original_height'), region.get('original_width')
    pixels = _brush().decode_rle(value['rle'])
    if size != shape or pixels.size != 4 * shape[0] * shape[1]:
        raise Refusal(f'{where} has a mask of {size} pixels, and the image has'
                      f' {shape}: an image must not be exchanged.')
    # The last of four channels tells how opaque a stroke is.
    return classes[name], pixels.reshape(*shape, 4)[..., 3] > 127
