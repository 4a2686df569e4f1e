# Copyright (c) mmib contributors. All rights reserved.
"""What twice the schedule brings the models of MMSegmentation's and
MMDetection's zoos, by the metafiles that the libraries install.

    python -m research.zoo.doubled research/zoo/results.csv [LIBRARY ...]
"""
import itertools
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import yaml
from scipy import stats

# Images to train on, in a pass.
IMAGES = {
    'ade20k': 20210,
    'cityscapes': 2975,
    'coco': 117266,
    'coco-stuff10k': 9000,
    'coco-stuff164k': 118287,
    'pascal-context': 4998,
    'pascal-context-59': 4998,
    'voc12aug': 10582,
}
# The schedule and the data set in the name of a config.
NAMES = {
    'mmseg': r'(?P<gpus>\d+)xb(?P<batch>\d+)-(?P<length>\d+)k_'
    r'(?P<data>[a-z0-9-]+?)-\d+x\d+',
    'mmdet': r'_(?P<length>\d)x_(?P<data>coco)$',
}
METRICS = {'mmseg': 'mIoU', 'mmdet': 'box AP'}


def read(library):
    """A line for each model and length."""
    folder = Path(find_spec(library).submodule_search_locations[0])
    for path in sorted(folder.glob('.mim/configs/*/metafile.y*ml')):
        content = yaml.safe_load(path.read_text())
        models = content if isinstance(content, list) else content['Models']
        for model in models or []:
            name = model['Name']
            found = re.search(NAMES[library], name)
            results = model.get('Results') or []
            results = results if isinstance(results, list) else [results]
            for result in results:
                quality = result.get('Metrics', {}).get(METRICS[library])
                if found and quality is not None and found['data'] in IMAGES:
                    begin, end = found.span('length')
                    yield dict(
                        library=library,
                        data=found['data'],
                        model=f'{name[:begin]}*{name[end:]}',
                        length=int(found['length']),
                        passes=passes_of(found),
                        quality=float(quality))


def passes_of(found):
    """Passes over the data."""
    groups = found.groupdict()
    if 'batch' not in groups:
        return 12 * int(groups['length'])
    iterations = 1000 * int(groups['length'])
    batch = int(groups['gpus']) * int(groups['batch'])
    return round(iterations * batch / IMAGES[groups['data']], 1)


def doubled(models):
    """The models that were trained with a schedule and with twice as long a
    one."""
    models = models.drop_duplicates(['library', 'data', 'model', 'length'])
    longer = models[models['length'] % 2 == 0]
    longer = longer.assign(length=longer['length'] // 2)
    pairs = models.merge(
        longer,
        on=['library', 'data', 'model', 'length'],
        suffixes=('', '_doubled'))
    return pairs.assign(
        gain=(pairs['quality_doubled'] - pairs['quality']).round(2))


def table(pairs):
    """Means with 95 % t-intervals, of at least four models."""
    yield ['data set', 'schedule', 'passes', 'models', 'gain', 'sd']
    yield ['---'] * 6
    for (library, data,
         length), found in pairs.groupby(['library', 'data', 'length']):
        gain = found['gain']
        if len(gain) < 4:
            continue
        low, high = stats.ttest_1samp(gain, 0).confidence_interval()
        unit = 'k' if library == 'mmseg' else 'x'
        passes = found[['passes', 'passes_doubled']].median()
        yield [
            data, f'{length}{unit} to {2 * length}{unit}',
            f'{passes.iloc[0]:.0f} to {passes.iloc[1]:.0f}',
            len(gain), f'{gain.mean():+.2f} [{low:+.2f}, {high:+.2f}]',
            f'{gain.std():.2f}'
        ]


if __name__ == '__main__':
    lines = map(read, sys.argv[2:] or NAMES)
    pairs = doubled(pd.DataFrame(itertools.chain(*lines)))
    pairs.to_csv(sys.argv[1], index=False)
    for row in table(pairs):
        print(f'| {" | ".join(map(str, row))} |')
