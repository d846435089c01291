"""What `bench sparsity` shows beside its points: best savings, hyper-parameters of AdaFEST, features one by one."""
