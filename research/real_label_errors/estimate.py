# Copyright (c) mmib contributors. All rights reserved.
"""How often the most wrong images to expect, of which ``mmib review`` tells,
are as many as come: rankings of people's errors, looked at to many depths.

    python -m research.real_label_errors.estimate OUT

OUT is that of ``run.py`` of commit d5c6715.
"""
import argparse
import glob
import os.path as osp

import numpy as np

from mmib.data.verdicts import Judged
from mmib.labels.review import expected

DEPTHS = (50, 100, 200, 400, 800, 1200, 2000, 3000, 4000, 6000, 8000)
NEXT = 50


def rankings(path, labels):
    """By the margin of the finished network, and by the average score."""
    with np.load(path) as file:
        logs, average = file['logs'], file['average']
    rows = np.arange(len(labels))
    leads = logs - logs[rows, labels][:, None]
    leads[rows, labels] = -np.inf
    return dict(margin=leads.max(1), average=average)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('out')
    out = parser.parse_args().out
    clean = np.load(osp.join(out, 'clean_label.npy'))
    print('| labels | ranking | reviews | expected | came | held |\n'
          '|---|---|---|---|---|---|')
    for quality in ('aggre_label', 'random_label1', 'worse_label'):
        labels = np.load(osp.join(out, f'{quality}.npy'))
        found = {}
        for path in sorted(glob.glob(osp.join(out, f'score-{quality}-*.npz'))):
            for name, values in rankings(path, labels).items():
                order = np.argsort(-values, kind='stable')
                is_wrong = (labels != clean)[order]
                for depth in DEPTHS:
                    for looked_at in range(depth, depth + 52, 13):
                        rows = [
                            Judged(
                                str(i), 'wrong' if wrong else 'hard', i + 1)
                            for i, wrong in enumerate(is_wrong[:looked_at])
                        ]
                        mean, most = expected(rows, NEXT)
                        came = is_wrong[looked_at:looked_at + NEXT].sum()
                        found.setdefault(name, []).append((mean, came, came
                                                           <= most))
        for name, reviews in found.items():
            mean, came, held = np.mean(reviews, 0)
            print(f'| `{quality}` | {name} | {len(reviews)} | {mean:.1f} | '
                  f'{came:.1f} | {100 * held:.0f} % |')


if __name__ == '__main__':
    main()
