# LoRA of all linear layers, on the Llama that base.py trains. Dropout stays 0:
# its random numbers are in no checkpoint, so a resume wouldn't be exact.
_base_ = 'scratch.py'
model = dict(
    checkpoint='work_dirs/base/iter_800.pth',
    lora=dict(
        r=8, lora_alpha=16, lora_dropout=0., target_modules='all-linear'))
