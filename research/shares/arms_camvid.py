# CamVid with a pretrained backbone in shares of the iterations: plain, pruned
# by Neyman, and at random. The arms of 60 % are those of research/camvid.
arms = {}
for percent in (90, 80, 70, 50, 40):
    ratio = percent / 100
    arms[f'short_{percent}'] = dict(seeds=3, shorten=dict(ratio=ratio))
    arms[f'neyman_{percent}'] = dict(
        seeds=3, convert=dict(ratio=ratio, policy=dict(type='Neyman')))
    arms[f'random_{percent}'] = dict(
        seeds=3,
        convert=dict(
            ratio=ratio, policy=dict(type='Neyman', num_strata=1)))
del percent, ratio
