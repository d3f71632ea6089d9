"""Evidence taken inside the trainer: tensors, batch and random state of a faulty step, live memory, the first NaN.

    first non-finite gradient, loss or reward; an exception; a request
        -> Capture -> <spool>/<run>/rank-00003/step-812-gradient.safetensors -> event `capture` (the path)
        -> the sidecar takes the file into the incident's bundle -> `grpo-sentinel reproduce`

A normal step costs a note of weak references per micro-batch and nothing else. All of it is guarded: it may fail, and
training goes on.
"""
