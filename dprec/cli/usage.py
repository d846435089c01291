"""What ``--help`` prints: the keys people touch. A test checks that the keys of FIT exist."""

COMMANDS = """\
usage: dprec COMMAND ...

  fit RECIPE          train a recommender, privately where the recipe has a privacy block
  prepare LOG         read a large log once, ahead of training
  plan RECIPE         what a run would cost in privacy, before it starts
  evaluate RUN        judge a trained run again, on other data too
  recommend RUN       what it would recommend after a history
  audit RECIPE        whether training keeps what it promises
  bench NAME          measure what dprec claims, on this machine

Each has --help. A first run: dprec fit recipes/quickstart.yaml
`python -m dprec.fit ...` and the like do the same where `dprec` is not on the path.
"""

FIT = """\
usage: dprec fit RECIPE [RECIPE ...] [--key value ...]
       dprec fit --resume RUN

Trains a recommender or a model of clicks, with differential privacy per user, or per record of
a click log, where the recipe has a privacy block.
Later recipes layer over earlier ones; overrides come last and win.

run
  --out DIR                      run folder; default runs/<recipe>/<n>, never overwritten
  --resume RUN                   continue an interrupted run (also: --out RUN --ckpt_path last)
  --seed N                       initial weights and dropout; never noise or sampling
  --checkpoint_every STEPS       steps between two checkpoints (50)
  --name NAME                    name of the run; default the recipe's
  --metrics LIST                 ndcg@k, hit@k, precision@k, recall@k (ndcg@10,hit@10);
                                 of clicks auc, log_loss, normalised_entropy

data  (class dprec.data.Sequences; dprec.data.Clicks for a click log;
       --data my_module.MyData for your own)
  --data.dataset NAME            file, synthetic, movielens-100k, -1m, -20m, -25m, -32m,
                                 amazon-games
  --data.path PATH               your log: .csv, .tsv, .json, .jsonl, .parquet, .feather, .txt, ...,
                                 also .gz, .zip and more; a folder of parts, or a pattern
  --data.user_column, --data.item_column, --data.time_column NAME
  --data.where CONDITION         which rows count, in SQL, such as "rating >= 4"
  --data.catalogue FILE          public item list, one id a line; or private: chosen and paid for;
                                 default from-data: the items in the data, assumed public
  --data.min_events N            drop users and items with fewer events (5)
  --data.validation false        train on the item before the last, and watch the test
  --data.metrics_users N         held-out users to rank; default all, or 50,000 of very many
  --data.max_length N            most recent items a model sees (200)
  --data.batch_size N            users a step, in expectation (1024)
  of a click log also            --data.test_days N, --data.period_days N, --data.table_scale S,
                                 --data.synthetic_records N

model  (class dprec.models.Transformer; DPFormer, GRU, LSTM, DualEncoder, Spectral;
        DLRM, PCTR, Logistic for clicks; --model my_module.MyModel for your own)
  --model.dim, --model.blocks, --model.heads N     --model.dropout P
  --model.learning_rate R        highest of the schedule
  --model.weight_decay R         --model.optimizer adam|adam_bc|adamw|sgd

privacy  (--privacy null trains without)
  --privacy.epsilon E            the budget; the noise is the least that keeps it
  --privacy.delta D              default 1 / users
  --privacy.noise_multiplier S   the noise itself; with --privacy.epsilon null ε is only reported
  --privacy.clipping MODE        auto-v, auto-s, flat
  --privacy.max_norm C           bound of one user's gradient
  --privacy.sparsity NAME        FEST, AdaFEST, LazyDP, ...: which table rows get noise, and when

trainer  (any argument of Lightning's Trainer)
  --trainer.max_epochs N         or --trainer.max_steps N
  --trainer.check_val_every_n_epoch N
  --trainer.accelerator cpu|gpu|auto   default cpu

  --print_config                 print the settings and stop
  --help-all                     every setting there is

example:
  dprec fit recipes/quickstart.yaml --privacy.epsilon 4 --out runs/eps4
"""

EVALUATE = """\
usage: dprec evaluate RUN [--data.key value ...] [--split test|validation]
                          [--metrics LIST] [--json]

Measures a run's model on the held-out data of the run, or on other data: a ranking beside
popularity's, or the probabilities of clicks beside the base rate.
RUN is a run folder or a .ckpt file.

  --data.path PATH     other data (any --data.key of dprec fit); unknown items are left out
  --split NAME         test (default) or validation
  --metrics LIST       such as ndcg@5,recall@20, or auc,log_loss of clicks; default those of the run
  --trust MODULE       a module of your own that the run's model or data come from; only dprec's
                       own are imported otherwise
  --json               one JSON object instead of a table

example:
  dprec evaluate runs/quickstart/1 --metrics ndcg@5,hit@20
"""

RECOMMEND = """\
usage: dprec recommend RUN --history "id id id" [-k 10] [--allow-seen] [--json]
       dprec recommend RUN --file histories.(txt|jsonl) [-k 10] [--allow-seen]

The best next items for a history of raw item ids, oldest first; needs the checkpoint and no data.

  --history IDS        separated by spaces or commas; ids that contain either go into a .jsonl file
  --file FILE          one history a line: ids as above, or in .jsonl a list ["id", "id"];
                       - is standard input. Writes one JSON object a line. A line without a known
                       item gets an "error" instead, the others go on, and the exit code is 0.
  -k N                 how many items (10)
  --allow-seen         also recommend what is in the history
  --trust MODULE       a module of your own that the run's model comes from
  --json               one JSON object instead of a table

Unknown ids are skipped with a warning; a --history of only unknown ids is an error (exit code 2).

example:
  dprec recommend runs/mine --history "12 7 95" -k 5
"""

PLAN = """\
usage: dprec plan RECIPE [--key value ...] [--users N [--items M]] [--json]

What a run would cost in privacy, without training: noise, sampling rate, steps, ε on the way.

  --users N            plan for this many users; no data is read then
  --items M            with --users: the size of the catalogue, only reported
  --key value          any override of dprec fit
  --json               one JSON object instead of a table

example:
  dprec plan recipes/movielens_dpformer.yaml --users 6040 --privacy.epsilon 5
"""

AUDIT = """\
usage: dprec audit RECIPE [RECIPE ...] [--key value ...]

Plants artificial users with random items, trains, and looks at what can be told of them afterwards: how far
a model remembers them (exposure), and an ε that the run cannot be below. Beside the recipe it trains the same
without privacy. A promise that is not kept ends the command with exit code 2.

  --canaries LIST      users who hold a secret (1,2,3,4,5,10,20,50,100)
  --each N             secrets of each (50)
  --length N           random items of a canary, before its random target (20)
  --references N       sequences nobody holds, for ranks (16384)
  --coins N            canaries put in or left out by a coin, for ε: sequences, and gradients (1000)
  --seed_of_canaries N
  --noise LIST         also with these noise multipliers and no budget (0.01,0.001; none where the model has releases)
  --strategies LIST    each noise also as these of dprec.sparsity place it, such as EANA,LazyDP,AdaFEST
  --beside TEXT        also the recipe with other overrides: 'name = --key value'; may be repeated
  --minutes N          in all; training that has no time left stops early and says so (8)
  --out DIR            folder of the audit; default runs/audit-<recipe>. The same command goes on where it stopped.
  --key value          any override of dprec fit

examples:
  dprec audit recipes/quickstart.yaml
  dprec audit recipes/quickstart.yaml --noise none --beside 'epsilon 1 = --privacy.epsilon 1'
"""

BENCH = """\
usage: dprec bench NAME [--json FILE] [--picture FILE] [--quick]
       dprec bench lazydp [--sweeps LIST]
       dprec bench dpformer-tables [--cells LIST] [--seeds N] [--runs LIST] [--keep FILE] [--document FILE]
       dprec bench sparsity|stream [--epsilons LIST] [--runs FOLDER]

Measures on this machine what dprec claims, side by side with its peers, and prints one table.

  phantom          training private against non-private, Opacus and fastDP: time and memory of a step
  recurrent        the same for GRU and LSTM on long histories, beside torch's own layers and Opacus's
  adafest          one table of up to ten million rows: AdaFEST and dense noise
  table-memory     peak memory of a whole private run with a table of ten million rows
  lazydp           DLRM on large tables: SGD, dense DP-SGD, EANA and LazyDP
  convex           private means and linear models with sparse gradients, beside plain noise and DP-SGD
  dpformer-tables  what models reach on MovieLens-1M and Amazon Games, from runs that are finished
  shares           the share of users who met each item, as DPFormer estimates it, against the truth
  sparsity         FEST, AdaFEST, AdaFEST+ and exponential selection: AUC against what a step's gradient costs
  stream           training day by day on clicks that drift: rows chosen once, every day or in every step

  --json FILE      the same rows as a list of objects
  --picture FILE   the comparison as a picture; needs matplotlib
  --quick          tiny sizes: shows that everything runs, measures nothing

  --sweeps LIST    of lazydp: some of sizes,batches,poolings,access; default all
  --runs FOLDER    where the runs are; default runs/ and the benchmark's name
  --epsilons LIST  of sparsity (default 1,3,8) and stream (8); what is missing is trained first
  --cells LIST     train first what is missing, such as movielens_dpformer@5,games_gru@8; or grid, or all;
                   any --key value of dprec fit goes along; stopped runs are continued
  --seeds N        runs of each cell; default 1
  --keep FILE      add the finished runs to this .jsonl file, which --runs reads as well as folders:
                   --runs docs/measured/dpformer.jsonl,runs/mine
  --document FILE  write the tables as a page, and its pictures beside it; needs matplotlib

examples:
  dprec bench phantom --json phantom.json --picture phantom.png
  dprec bench dpformer-tables --cells movielens_spectral@5 --seeds 3
  dprec bench dpformer-tables --runs docs/measured/dpformer.jsonl --document docs/results.md
"""

PREPARE = """\
usage: dprec prepare LOG [--data.key value ...] [--out FOLDER] [--json]

Reads a log of any size once and writes its histories to a folder that training maps into memory,
with progress and a summary. dprec fit does so by itself for logs of 256 MB and more.
LOG is a file, a folder of parts, or a pattern such as 'log/*.parquet'.

  --data.user_column, --data.item_column, --data.time_column, --data.format, --data.where
                       how the log is read, as for dprec fit
  --data.cache DIR     the folder goes there; default beside the log, where dprec fit looks
  --out FOLDER         another name for it; train with --data.path FOLDER
  --json               one JSON object instead of a table

The folder holds people's histories and is as private as the log.

example:
  dprec prepare events/ --data.where "rating >= 4"
"""
