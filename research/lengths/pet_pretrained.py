# Copyright (c) mmib contributors. All rights reserved.
"""``research.lengths.pet`` with a backbone that knows ImageNet."""
from mmengine.config import Config

from benchmarks.quality import camvid

from .pet import DATA, METRIC, PASSES  # noqa: F401
from .pet import full_training as from_scratch


def full_training(data):
    cfg = from_scratch(data)
    pretrained = Config.fromfile(camvid.CONFIG, import_custom_modules=False)
    cfg.custom_imports = pretrained.custom_imports
    model = cfg.model
    for name in ('mean', 'std'):
        model.data_preprocessor[name] = pretrained.model.data_preprocessor[
            name]
    model.backbone = pretrained.model.backbone
    for name in ('decode_head', 'auxiliary_head'):
        model[name].in_channels = pretrained.model[name].in_channels
    cfg.optim_wrapper.optimizer.lr = pretrained.optim_wrapper.optimizer.lr
    return cfg
