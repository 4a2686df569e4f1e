# The Llama that lora.py begins with: it learns to copy.
_base_ = 'scratch.py'
train_dataloader = dict(dataset=dict(ann_file='data/llama/base.jsonl'))
