"""GPUs that are not there: tensors that say `cuda:k` and keep their numbers in main memory, over a strict nccl.

    start_ranks(OnFakeGpus(job), 4, JoinOptions())      # `ranks.py`: every rank of dgt's launcher has a GPU of its own
    python -m tests.fake_cuda train preset=mlp          # one rank of torchrun; `launch` starts several

Code that knows nothing of it takes its CUDA and nccl branches, computes the right numbers, and is held to the rules of
the hardware. What breaks one is written down in `ledger.faults`, and a rank with faults fails:

    tensors.py   which device a tensor is on; no op takes tensors of two of them
    dispatch.py  every op: a kernel to be counted, a host synchronisation, a buffer that nccl is working on
    host.py      copies between pinned memory and a GPU, which are there only once somebody has waited for them; events
    nccl.py      a queue per communicator, no tags, sizes that must match, a watchdog that ends the process
    device.py    what `torch.cuda` says
    ledger.py    faults; synchronisations, kernels and living bytes by the line of dgt that causes them

One stream per GPU is emulated, and kernels run when they are called: speed, kernels of torch and races between several
streams of a program are not.
"""
