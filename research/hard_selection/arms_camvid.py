# Hard selection on CamVid with a pretrained backbone, in 60 % of the
# iterations, each at two learning rates. The plain training is short_60 of
# research/shares.
custom_imports = dict(imports=['research.hard_selection.tempered'])
ratio = 0.6
arms = {}
for rate in (0.05, 0.1):
    arms[f'epsilon_greedy_{rate}'] = dict(
        seeds=5,
        rate=rate,
        convert=dict(
            ratio=ratio,
            delta=1,
            policy=dict(type='EpsilonGreedy', keep=ratio, period=2),
            ema=0.8))
    arms[f'tempered_{rate}'] = dict(
        seeds=5,
        rate=rate,
        convert=dict(
            ratio=ratio, policy=dict(type='Tempered'), normalize=True))
del rate, ratio
