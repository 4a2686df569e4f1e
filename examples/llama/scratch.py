# A small Llama, all of it trained: 12.8 passes over 2,000 conversations.
custom_imports = dict(
    imports=['examples.llama.data', 'examples.llama.model'],
    allow_failed_imports=False)
model = dict(
    type='Llama',
    llama=dict(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=176,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        pad_token_id=256,
        bos_token_id=257,
        eos_token_id=258,
        use_cache=False))
conversations = dict(type='Conversations', pipeline=[dict(type='Tokenize')])
train_dataloader = dict(
    batch_size=32,
    dataset=dict(ann_file='data/llama/train.jsonl', **conversations),
    collate_fn=dict(type='pad_conversations'),
    sampler=dict(type='InfiniteSampler', shuffle=True))
val_dataloader = dict(
    batch_size=100,
    dataset=dict(
        ann_file='data/llama/held_out.jsonl', test_mode=True, **conversations),
    collate_fn=dict(type='pad_conversations'),
    sampler=dict(type='DefaultSampler', shuffle=False))
val_evaluator = dict(type='Answers')
val_cfg = dict()
test_dataloader, test_evaluator, test_cfg = (val_dataloader, val_evaluator,
                                             val_cfg)
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=3e-3, weight_decay=0.01))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, begin=0, end=100, by_epoch=False),
    dict(
        type='CosineAnnealingLR',
        eta_min=0,
        begin=100,
        end=800,
        T_max=700,
        by_epoch=False)
]
train_cfg = dict(by_epoch=False, max_iters=800, val_interval=200)
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=100),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=400))
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
