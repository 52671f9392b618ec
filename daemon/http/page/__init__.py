"""The page for people: views of the daemon as HTML, with scripts and styles of this folder alone. In reading order:

rendering   `render`: a template with a view, every text escaped
formats     numbers, times and small curves as the page writes them
run_list    the search of the list of runs, and forks under their parents
steering    `Steering`: the commands to a run on offer, and why the reader may give none
alarms      the reasons to look at a run now
starts      experiments to begin with in the studio
curves      the curves on a run's page: which figures, under which titles
rollouts    groups with a coloured cell for each member; one row through versions; neighbours by key
marked_text texts in pieces: the answer read by the reward, words of one answer alone
history     events by subject: a task, a step, an evaluation, a worker
timeline    the shares of training and of each wait, in words
configuration fields of the resolved file in sections, filtered by words and origin
assets      scripts and styles with their digests: those of `static/`, and other projects' in `vendor/`, with licences
templates/  the HTML of each page

Templates read the structs of `rftd.daemon.http.views` and nothing else; routes are in `rftd.daemon.http.api.pages` and
`run_pages`, `record_pages`.
"""
