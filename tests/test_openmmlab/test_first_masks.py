# Copyright (c) mmib contributors. All rights reserved.
"""Classes without a pixel at the start of a run."""
import pytest
import torch
from mmseg.registry import DATASETS

from tests.helpers.segmentors import IndexDataset, build, read_log, train


@DATASETS.register_module()
class NumberedMasks(IndexDataset):
    """Each pixel has one of these numbers in turn."""

    def __init__(self, numbers, classes, size=12):
        super().__init__(size)
        self.numbers, self.classes = torch.tensor(numbers), classes

    @property
    def metainfo(self):
        return dict(classes=[f'class {i}' for i in range(self.classes)])

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        labels = sample['data_samples'].gt_sem_seg.data
        numbers = self.numbers[torch.arange(labels.numel()) %
                               len(self.numbers)]
        labels.copy_(numbers.view_as(labels))
        return sample


@pytest.mark.parametrize('numbers, classes, said', [
    ([0, 255], 2, 'the class class 1; 50% of the pixels'),
    ([0], 2, 'the class class 1; 0%'),
    ([1, 2, 255, 255], 3, 'the class class 0; 50%'),
    ([0, 1], 2, ''),
    ([0, 1, 255], 2, ''),
    ([0, 1, 255], 12, ''),
    ([0, 255], 12, 'the class class 1, class 2'),
])
def test_classes_without_a_pixel_are_told(tmp_path, numbers, classes, said):
    """Of few classes, or where all pixels have the same one."""
    train(
        build(
            tmp_path, **{
                'train_dataloader.dataset': dict(
                    type='NumberedMasks',
                    numbers=numbers,
                    classes=classes,
                    _delete_=True),
                'model.decode_head.num_classes': 12,
                'model.auxiliary_head.num_classes': 12
            }))
    log = read_log(tmp_path)
    assert log.count('no pixel of the first') == bool(said)
    assert said in log
