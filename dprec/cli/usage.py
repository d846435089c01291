"""What ``--help`` prints: the keys people touch. A test checks that the keys of FIT exist."""

COMMANDS = """\
usage: dprec COMMAND ...

  fit RECIPE          train a recommender, privately if the recipe has a privacy block
  prepare LOG         read a large log once, before training
  plan RECIPE         compute the privacy cost of a run before it starts
  tune RECIPE         choose among settings, within one budget of privacy
  evaluate RUN        evaluate a trained run again, also on other data
  recommend RUN       recommend items for a history
  predict RUN         predict classes of texts, or clicks
  export RUN          write a trained model for other programs: ONNX, torch.export, safetensors
  serve RUN           answer requests over HTTP
  report RUN          write a page about a run, or about several beside each other
  audit RECIPE        test whether training keeps its guarantee
  bench NAME          measure dprec's claims on this machine
  recipes             list the recipes that come with dprec, or copy one

Each has --help. A first run: dprec fit quickstart
If `dprec` is not on the path, use `python -m dprec.fit ...` and the like.
"""

FIT = """\
usage: dprec fit RECIPE [RECIPE ...] [--key value ...]
       dprec fit --resume RUN

Trains a recommender or a model of clicks, differentially private per user, or per record of a
click log, if the recipe has a privacy block. RECIPE is a file, or a name of `dprec recipes`.
Later recipes replace settings of earlier ones; overrides replace both.

run
  --out DIR, --name NAME         run folder (runs/<recipe>/<n>), never overwritten, and its name
  --resume RUN                   continue a run, which Ctrl-C and SIGTERM save after a step
  --trust MODULE                 with --resume: import this module of yours, which the run names
  --seed N                       initial weights and dropout; never noise or sampling
  --checkpoint_every STEPS       steps between two checkpoints (50)
  --metrics LIST                 ndcg@k, hit@k, mrr@k, precision@k, recall@k, coverage@k, novelty@k
                                 (ndcg@10,hit@10); auc, log_loss, normalised_entropy; accuracy

data  (class dprec.data.Sequences; dprec.data.Clicks for a click log; dprec.data.Texts for texts;
       --data my_module.MyData for your own)
  --data.dataset NAME            file, synthetic, movielens-100k, -1m, -20m, -25m, -32m,
                                 amazon-games
  --data.path PATH               your log: .csv, .tsv, .json, .jsonl, .parquet, .feather, .txt, ...,
                                 also .gz and .zst; a folder of parts, or a pattern
  --data.user_column, --data.item_column, --data.time_column NAME
  --data.where CONDITION         which rows to use, in SQL, such as "rating >= 4"
  --data.catalogue FILE          public item list, one id a line; or private: chosen with noise, for
                                 a share of ε; default from-data: those of the data, assumed public
  --data.min_events N            drop items of fewer users, users of fewer events (5)
  --data.validation false        train on the item before the last, and watch the test
  --data.test_users SHARE        hold out whole users, 0.1 for a tenth, in place of the last items
  --data.test_days N, --data.test_events SHARE, --data.test_items SHARE   hold these out
  --data.metrics_users N         held-out users to rank; default all, at most 50,000 on large data
  --data.max_length N            most recent items a model sees (200)
  --data.batch_size N            expected users a step (1024, or a quarter of few users)
  for click logs also            --data.period_days N, --data.table_scale S

model  (class dprec.models.Transformer; DPFormer, GRU, LSTM, DualEncoder, Spectral, PrivateALS;
        DLRM, PCTR, Logistic for clicks; TextClassifier; --model my_module.MyModel for your own)
  --model.dim, --model.blocks, --model.heads N     --model.dropout P
  --model.learning_rate R        the highest rate of the schedule
  --model.weight_decay R         --model.optimizer adam|adam_bc|adamw|sgd

privacy  (--privacy null trains without)
  --privacy.epsilon E            the budget; the noise is the smallest that keeps it
  --privacy.delta D              default 1 / users
  --privacy.noise_multiplier S   the noise itself; with --privacy.epsilon null ε is only reported
  --privacy.clipping MODE        auto-v, auto-s, flat
  --privacy.max_norm C           largest norm of one user's gradient
  --privacy.sparsity NAME        FEST, AdaFEST, LazyDP, ...: which table rows get noise, and when

trainer  (any argument of Lightning's Trainer)
  --trainer.max_epochs N         or --trainer.max_steps N
  --trainer.check_val_every_n_epoch N
  --trainer.accelerator cpu|gpu|auto   default cpu

  --print_config                 print the settings and stop; --help-all explains all of them

example:
  dprec fit recipes/quickstart.yaml --privacy.epsilon 4 --out runs/eps4
"""

EVALUATE = """\
usage: dprec evaluate RUN [--data.key value ...] [--split test|validation]
                          [--metrics LIST] [--json]

Measures a run's model on the held-out data of the run, or on other data, beside a baseline:
popularity for rankings, the base rate for clicks, the classes' shares for texts.
RUN is a run folder or a .ckpt file.

  --data.path PATH     other data (any --data.key of dprec fit); unknown items are left out
  --split NAME         test (default) or validation
  --metrics LIST       such as ndcg@5,recall@20, or auc,log_loss of clicks; default those of the run
  --trust MODULE       import this module of yours for the run's model or data; without it only
                       dprec's modules are imported
  --json               one JSON object instead of a table

example:
  dprec evaluate runs/quickstart/1 --metrics ndcg@5,hit@20
"""

RECOMMEND = """\
usage: dprec recommend RUN --history "id id id" [-k 10] [--allow-seen] [--json]
       dprec recommend RUN --file histories.(txt|jsonl) [-k 10] [--allow-seen]
       dprec recommend RUN --users LOG --out FILE [-k 10] [--allow-seen]

Recommends next items for histories of raw item ids, oldest first. Needs only the checkpoint.

  --history IDS        separated by spaces or commas; ids that contain either go into a .jsonl file
  --file FILE          one history a line: ids as above, or in .jsonl a list ["id", "id"], or
                       {"user": "ann", "history": ["id"]}; - is standard input. A run that reads
                       context takes events in place of ids: {"item": "id", "device": "tv"}
                       Writes one JSON object a line, with the user.
  --users LOG          all users of a log in any format of dprec fit; --user_column, --item_column
                       and --time_column name its columns, and --where says which rows count (null:
                       all), by default as in the run
  --out FILE           with --users: .parquet, .csv, .tsv or .jsonl, a row for each user and place
  -k N                 how many items (10)
  --allow-seen         also recommend items of the history
  --trust MODULE       import this module of yours for the run's model
  --json               one JSON object instead of a table

Unknown ids are skipped with a warning. Where none is known, and for an empty history, the answer
is what most people choose as far as the model tells; "source" is then "popularity".

example:
  dprec recommend runs/mine --history "12 7 95" -k 5
"""

PREDICT = """\
usage: dprec predict RUN --text "..." [--pair "..."]
       dprec predict RUN --file texts.txt
       dprec predict RUN --log LOG --out FILE [--keep COLUMN,COLUMN]

Predicts the class of each text, and how probable each is: one JSON object a line. Or how probable
a click is, for each row of a log, whose columns have the names that the run's settings give. Needs
only the checkpoint, and of texts what data.tokenizer and model.encoder name.

  --text TEXT          one text; --pair TEXT is the second one, where the run was trained on pairs
  --file FILE          one text a line, or two with a tab between; - is standard input
  --log LOG            records in any format of dprec fit; no label is needed, and data.where leaves
                       no row out
  --out FILE           with --log: .parquet, .csv, .tsv or .jsonl, a row for each, in order
  --keep COLUMNS       with --log: columns to copy beside the probability, such as user_id,ad_id
  --trust MODULE       import this module of yours for the run's model

examples:
  dprec predict runs/mine --text "The end makes up for all of it."
  dprec predict runs/clicks --log candidates.csv --keep user_id,ad_id --out probabilities.csv
"""

EXPORT = """\
usage: dprec export RUN --out FOLDER [--format onnx|torch|safetensors]

Writes a folder with a trained recommender for other programs: the model, items.json with the raw id
of each item number, and interface.json, which says what goes in and out, and the guarantee.

  --out FOLDER         a folder that does not exist yet
  --format NAME        onnx (default): model.onnx, for ONNX Runtime; needs pip install 'dprec[onnx]'
                       torch: model.pt2, for torch.export.load
                       safetensors: the weights alone; needs pip install 'dprec[safetensors]'
  --trust MODULE       import this module of yours for the run's model

example:
  dprec export runs/mine --format torch --out exported
"""

SERVE = """\
usage: dprec serve RUN [--host HOST] [--port N]

Answers requests over HTTP from a trained recommender; needs pip install 'dprec[serve]'.

  POST /recommend      {"history": ["12", "7"], "k": 10, "exclude_seen": true}, oldest first;
                       answers {"items", "scores", "source", "unknown"}
  GET /health          {"status": "ok", "items": N}
  GET /guarantee       the run's sentence, ε and δ

  --host HOST          127.0.0.1; the service has no password and no TLS
  --port N             8000; 0 for any that is free, which is printed
  --max_k N            items in an answer (1000)
  --max_history N      events in a history (1000)
  --max_body N         bytes of a request (65536)
  --max_requests N     requests at a time (512)
  --trust MODULE       import this module of yours for the run's model

No history is stored or logged. What is refused gets a status of 4xx, or 503 where too many wait, and
{"error": one line}.

example:
  dprec serve runs/mine --port 8000
"""

PLAN = """\
usage: dprec plan RECIPE [--key value ...] [--users N [--items M]] [--json]

Computes the privacy cost of a run without training: noise, sampling rate, steps, ε on the way.

  --users N            plan for this many users, without reading data
  --items M            with --users: the size of the catalogue, only reported
  --key value          any override of dprec fit
  --json               one JSON object instead of a table

example:
  dprec plan recipes/movielens_dpformer.yaml --users 6040 --privacy.epsilon 5
"""

TUNE = """\
usage: dprec tune RECIPE --try KEY=VALUE,VALUE [--try ...] [--key value ...]

Trains a random number of runs, each of settings drawn at random, scores each on validation data with noise, keeps
the best and deletes the others. privacy.epsilon pays for all of it. Says the price first; stopped, the same command
goes on. At the end it trains the recipe as it is, with all of ε for itself, and compares both on validation data.

  --try KEY=VALUE,...  values to choose among; of several --try, all combinations
  --runs N             how many runs on average (5); how many there were is a secret of the choice
  --plan               only say the price
  --out DIR            folder of the choice (runs/<recipe>-tuned); the run that is kept is in DIR/best
  --key value          any override of dprec fit

example:
  dprec tune recipes/sequences.yaml --data.path my_log.csv --try model.window=3,5,10
"""

AUDIT = """\
usage: dprec audit RECIPE [RECIPE ...] [--key value ...]

Adds artificial users with random items, trains, and measures what the model reveals about them: how well it
remembers them (exposure), and a lower bound on ε. It also trains the recipe without privacy, to compare. If a
guarantee is not kept, the exit code is 3.

  --canaries LIST      numbers of users who hold a secret (1,2,3,4,5,10,20,50,100)
  --each N             secrets for each number of users (50)
  --length N           random items of a canary, before its random target (20)
  --references N       sequences that nobody holds, for ranks (16384)
  --coins N            canaries of each kind that a coin puts in or leaves out, to bound ε (1000)
  --seed_of_canaries N  other canaries for another number (0)
  --noise LIST         also with these noise multipliers and no budget (0.01,0.001; none where the model has releases)
  --strategies LIST    each noise also as these of dprec.sparsity place it, such as EANA,LazyDP,AdaFEST
  --beside TEXT        also the recipe with other overrides: 'name = --key value'; may be repeated
  --minutes N          for the whole audit; training that has no time left stops early and says so (8)
  --out DIR            folder of the audit; default runs/audit-<recipe>. Repeat a stopped command to continue.
  --key value          any override of dprec fit

examples:
  dprec audit recipes/quickstart.yaml
  dprec audit recipes/quickstart.yaml --noise none --beside 'epsilon 1 = --privacy.epsilon 1'
"""

BENCH = """\
usage: dprec bench NAME [--json FILE] [--picture FILE] [--quick]
       dprec bench phantom [--threads N]
       dprec bench lazydp [--sweeps LIST]
       dprec bench gpu

Measures on this machine what private training costs, beside its peers, and prints it as tables.

  phantom          private training against non-private, Opacus and fastDP: time and memory of a step
  lazydp           DLRM on large tables: dense DP-SGD, EANA and LazyDP beside plain SGD
  gpu              private steps on a GPU: right or not, time and memory, largest batch, steps on tables

  --json FILE      the same rows as a list of objects
  --picture FILE   the comparison as a picture, of all but gpu; needs matplotlib
  --quick          tiny sizes: only shows that everything runs

  --threads N      of phantom: of each step, default 1
  --sweeps LIST    of lazydp: some of sizes,batches,poolings,access,networks; default all

examples:
  dprec bench phantom --json phantom.json --picture phantom.png
  dprec bench lazydp --sweeps sizes,networks --json lazydp.json
"""

PREPARE = """\
usage: dprec prepare LOG [--data.key value ...] [--out FOLDER] [--json]

Reads a log of any size once and writes its histories to a folder that training maps into memory,
with progress and a summary. dprec fit does this itself for logs of 256 MB and more.
LOG is a file, a folder of parts, or a pattern such as 'log/*.parquet'.

  --data.user_column, --data.item_column, --data.time_column, --data.format, --data.where
                       how the log is read, as for dprec fit
  --data.context '{device: 16, hour: [6, 12, 18]}'
                       columns that stand beside the item: rows to hash to, or bounds of numbers
  --data.cache DIR     put the folder there; default beside the log, where dprec fit looks for it
  --out FOLDER         another name for it; train with --data.path FOLDER
  --json               one JSON object instead of a table

The folder holds people's histories and is as private as the log.

example:
  dprec prepare events/ --data.where "rating >= 4"
"""

RECIPES = """\
usage: dprec recipes [--json]
       dprec recipes copy NAME [--out FOLDER]

Lists the recipes that come with dprec, each with its first sentence. `dprec fit NAME` finds one by its name.

  copy NAME            put the recipe beside you, to change it; never over a file
  --out FOLDER         put it there
  --json               one JSON object instead of lines

example:
  dprec recipes copy quickstart
"""

REPORT = """\
usage: dprec report RUN [--out FILE]
       dprec report RUN RUN ... --out FILE

Writes one page of HTML that needs no network: what a finished run promises in one sentence, ε over the
steps, the ledger, what is assumed public and what is not covered, its quality beside a baseline, the curves
of training, the recipe, and how to reproduce it. Of several runs: ε against quality, a row a run.
dprec fit writes report.html into each run folder.

  --out FILE           default RUN/report.html; needed for several runs

The page holds figures without noise and is as private as metrics.json.

example:
  dprec report runs/eps1 runs/eps8 --out comparison.html
"""
