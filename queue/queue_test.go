package queue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
)

var kinds = []mariposa.TaskKind{
	mariposa.TaskStart, mariposa.TaskStop, mariposa.TaskScale, mariposa.TaskReprovision, mariposa.TaskFreeze,
}

// contract is the admission table as people read it: row, the task already
// there; column, the one being added.
const contract = `
             start     stop      scale      reprovision freeze
start        reject    terminate fifo       fifo        terminate
stop         reject    reject    reject     reject      terminate
scale        fifo      terminate reject     concurrent  terminate
reprovision  fifo      terminate concurrent terminate   terminate
freeze       terminate terminate terminate  terminate   reject
`

func cells(t *testing.T, cell func(t *testing.T, old, added mariposa.TaskKind, verdict string)) {
	t.Helper()
	rows := strings.Split(strings.TrimSpace(contract), "\n")
	columns := strings.Fields(rows[0])
	for _, row := range rows[1:] {
		fields := strings.Fields(row)
		for i, verdict := range fields[1:] {
			t.Run(fmt.Sprintf("a %s beside a %s: %s", columns[i], fields[0], verdict), func(t *testing.T) {
				cell(t, mariposa.TaskKind(fields[0]), mariposa.TaskKind(columns[i]), verdict)
			})
		}
	}
}

var dawn = time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC)

// task is one of a person; its id says when it came.
func task(id string, kind mariposa.TaskKind, state mariposa.TaskState, services ...string) Task {
	at := 0
	fmt.Sscanf(id, "t%d", &at)
	return Task{
		ID:     id,
		Spec:   &mariposa.TaskSpec{Task: kind, Origin: mariposa.OriginUser, Services: services, Created: dawn.Add(time.Duration(at) * time.Second), LiftsFreeze: true},
		Status: &mariposa.TaskStatus{State: state},
	}
}

func repair(id string, state mariposa.TaskState, services ...string) Task {
	t := task(id, mariposa.TaskScale, state, services...)
	t.Spec.Origin = mariposa.OriginMariposa
	return t
}

func ids(tasks []Task) string {
	var out []string
	for _, t := range tasks {
		out = append(out, t.ID)
	}
	return strings.Join(out, " ")
}

func nobodyStuck(Task) bool { return false }

// scopes pairs the scopes of an older and a newer task.
var scopes = []struct {
	old, added []string
	overlap    bool
}{
	{nil, nil, true},
	{nil, []string{"web"}, true},
	{[]string{"web"}, nil, true},
	{[]string{"web"}, []string{"web"}, true},
	{[]string{"db", "web"}, []string{"web", "app"}, true},
	{[]string{"web"}, []string{"db"}, false},
	{[]string{"web", "app"}, []string{"db", "cache"}, false},
}

func TestEveryCellOfTheTable(t *testing.T) {
	cells(t, func(t *testing.T, old, added mariposa.TaskKind, verdict string) {
		for _, scope := range scopes {
			for _, state := range []mariposa.TaskState{mariposa.TaskQueued, mariposa.TaskActive} {
				there, add := task("t1", old, state, scope.old...), task("t2", added, mariposa.TaskQueued, scope.added...)
				a, err := Admit([]Task{there}, add.Spec)
				want := verdict
				switch freezes := old == mariposa.TaskFreeze && added == mariposa.TaskFreeze; {
				case !scope.overlap:
					want = "concurrent"
				case freezes && includes(scope.old, scope.added):
				case freezes && includes(scope.added, scope.old): // it freezes more
					want = "terminate"
				case freezes, old == mariposa.TaskFreeze && !includes(scope.added, scope.old): // it keeps something that the other does not
					want = "concurrent"
				}
				if (err != nil) != (want == "reject") {
					t.Fatalf("%v beside %v: %v", scope.added, scope.old, err)
				}
				if got := ids(a.Terminate); (got == "t1") != (want == "terminate") {
					t.Fatalf("%v beside %v: terminates %q", scope.added, scope.old, got)
				}
				if want == "reject" || want == "terminate" {
					continue
				}
				waits := !strings.Contains(ids(Ready([]Task{there, add}, nobodyStuck)), "t2")
				if waits != (want == "fifo") {
					t.Fatalf("%v beside %v: waits %v", scope.added, scope.old, waits)
				}
			}
		}
	})
}

func TestARefusalNamesTheTaskInTheWayAndNothingElseHappens(t *testing.T) {
	open := []Task{task("t1", mariposa.TaskReprovision, mariposa.TaskActive, "web"), task("t2", mariposa.TaskStop, mariposa.TaskQueued, "db")}
	a, err := Admit(open, task("t3", mariposa.TaskReprovision, mariposa.TaskQueued).Spec)
	if mariposa.CodeOf(err) != mariposa.Conflict || !strings.Contains(err.Error(), "t2 (stop, queued)") {
		t.Fatalf("refusal is %v", err)
	}
	if len(a.Terminate) > 0 {
		t.Fatalf("a refused task still does %+v", a)
	}
	for kind, code := range map[mariposa.TaskKind]mariposa.ReasonCode{
		mariposa.TaskStop: mariposa.ReasonAwaitTask, mariposa.TaskScale: mariposa.ReasonAwaitOrStop, mariposa.TaskFreeze: mariposa.ReasonThawFirst,
	} {
		_, err := Admit([]Task{task("t1", kind, mariposa.TaskActive, "web")}, task("t2", kind, mariposa.TaskQueued, "web").Spec)
		var refused *mariposa.Error
		if !errors.As(err, &refused) || !refused.Reason.Is(code) || refused.Reason.Is(mariposa.ReasonAwaitTask, mariposa.ReasonAwaitOrStop) && refused.Reason.Subject != "t1" {
			t.Errorf("beside a %s: %v", kind, err)
		}
	}
}

func TestWhatHasEndedIsInNobodysWay(t *testing.T) {
	for _, state := range []mariposa.TaskState{mariposa.TaskCompleted, mariposa.TaskFailed, mariposa.TaskTerminated} {
		ended := task("t1", mariposa.TaskStart, state)
		for _, kind := range kinds {
			add := task("t2", kind, mariposa.TaskQueued)
			if a, err := Admit([]Task{ended}, add.Spec); err != nil || len(a.Terminate) > 0 {
				t.Errorf("a %s beside a start that is %s: %v %v", kind, state, a, err)
			}
			if ids(Ready([]Task{ended, add}, nobodyStuck)) != "t2" {
				t.Errorf("a %s waits for a start that is %s", kind, state)
			}
		}
	}
}

func TestAPersonsTaskIsNotHinderedByMariposasOwn(t *testing.T) {
	open := []Task{repair("t1", mariposa.TaskActive, "web"), repair("t2", mariposa.TaskActive, "db"), repair("t3", mariposa.TaskCompleted, "web")}
	for _, kind := range kinds {
		a, err := Admit(open, task("t4", kind, mariposa.TaskQueued, "web").Spec)
		if err != nil || len(a.Terminate) > 0 {
			t.Errorf("%s: %+v %v", kind, a, err)
		}
	}
}

func TestMariposasOwnTasksStandOutsideTheTable(t *testing.T) {
	for _, kind := range kinds {
		person, own := task("t1", kind, mariposa.TaskActive), repair("t2", mariposa.TaskQueued, "web")
		if a, err := Admit([]Task{person}, own.Spec); err != nil || len(a.Terminate) > 0 {
			t.Errorf("a repair beside a %s: %+v %v", kind, a, err)
		}
		if got := ids(Ready([]Task{person, own}, nobodyStuck)); got != "t2" {
			t.Errorf("a repair beside a %s: ready are %q", kind, got)
		}
		own, late := repair("t1", mariposa.TaskActive, "web"), task("t2", kind, mariposa.TaskQueued, "web")
		if got := ids(Ready([]Task{own, late}, nobodyStuck)); got != "t2" {
			t.Errorf("a %s waits for a repair", kind)
		}
	}
}

func TestAWaitingTaskBeginsOnceTheOlderOneIsStuck(t *testing.T) {
	open := []Task{task("t1", mariposa.TaskStart, mariposa.TaskActive), task("t2", mariposa.TaskScale, mariposa.TaskQueued, "web")}
	if got := ids(Ready(open, nobodyStuck)); got != "" {
		t.Fatalf("ready are %q", got)
	}
	if got := ids(Ready(open, func(o Task) bool { return o.ID == "t1" })); got != "t2" {
		t.Fatalf("ready are %q", got)
	}
}

// unlifting is a task that may not end a freeze: a change of the manifest, or a
// deployer's.
func unlifting(id string, kind mariposa.TaskKind, services ...string) Task {
	t := task(id, kind, mariposa.TaskQueued, services...)
	t.Spec.LiftsFreeze = false
	return t
}

func TestWhatMayNotLiftAFreezeWaitsForTheThaw(t *testing.T) {
	for _, kind := range kinds[:4] {
		for _, scope := range scopes {
			freeze, add := task("t1", mariposa.TaskFreeze, mariposa.TaskActive, scope.old...), unlifting("t2", kind, scope.added...)
			a, err := Admit([]Task{freeze}, add.Spec)
			if err != nil || len(a.Terminate) > 0 || (ids(a.Thaw) == "t1") != scope.overlap {
				t.Fatalf("a %s of %v beside a freeze of %v: %+v %v", kind, scope.added, scope.old, a, err)
			}
			for _, state := range []mariposa.TaskState{mariposa.TaskQueued, mariposa.TaskActive} {
				freeze.Status = &mariposa.TaskStatus{State: state}
				ready := strings.Contains(ids(Ready([]Task{freeze, add}, nobodyStuck)), "t2")
				if ready == scope.overlap {
					t.Fatalf("a %s of %v beside a %s freeze of %v: begins %v", kind, scope.added, state, scope.old, ready)
				}
			}
			add.Frozen = true // by a freeze whose task has ended
			if got := ids(Ready([]Task{add}, nobodyStuck)); got != "" {
				t.Fatalf("a %s of what is frozen begins", kind)
			}
			lifting := task("t2", kind, mariposa.TaskQueued, scope.added...)
			lifting.Frozen = true
			if got := ids(Ready([]Task{lifting}, nobodyStuck)); got != "t2" {
				t.Fatalf("a %s that lifts the freeze waits for it", kind)
			}
		}
	}
}

// A freeze stays open as long as it keeps a service, and concerns only those that it
// keeps.
func TestAFreezeConcernsWhatItStillKeeps(t *testing.T) {
	frozen := func(names ...string) *mariposa.ProjectStatus {
		st := &mariposa.ProjectStatus{Services: map[string]*mariposa.ServiceStatus{"app": {}, "db": {}, "web": {}}}
		for _, name := range names {
			st.Services[name].Frozen = &mariposa.Freeze{}
		}
		return st
	}
	for _, c := range []struct {
		freeze, kept, add []string
		ends, blocks      bool // it ends by a task that lifts it, makes one wait that does not
	}{
		{nil, []string{"app", "db", "web"}, nil, true, true},
		{nil, []string{"app", "db", "web"}, []string{"web"}, false, true},
		{nil, []string{"app", "db", "web"}, []string{"app", "db", "web"}, true, true},
		{nil, []string{"web"}, []string{"web"}, true, true},
		{nil, []string{"web"}, []string{"app"}, false, false},
		{nil, []string{"web"}, []string{"app", "web"}, true, true},
		{nil, []string{"db", "web"}, []string{"app", "web"}, false, true},
		{[]string{"db", "web"}, []string{"web"}, []string{"web"}, true, true},
		{[]string{"db", "web"}, []string{"web"}, []string{"app", "db"}, false, false},
		{[]string{"db", "web"}, []string{"app", "web"}, []string{"web"}, true, true}, // another freeze keeps app
	} {
		if queued := task("t1", mariposa.TaskFreeze, mariposa.TaskQueued, c.freeze...).ReadFreeze(frozen(c.kept...)); len(queued.Thawed) > 0 || len(c.freeze) == 0 && len(queued.Kept) != 3 {
			t.Errorf("a freeze of %v that has not begun keeps %v, and not %v", c.freeze, queued.Kept, queued.Thawed)
		}
		freeze := task("t1", mariposa.TaskFreeze, mariposa.TaskActive, c.freeze...).ReadFreeze(frozen(c.kept...))
		a, err := Admit([]Task{freeze}, task("t2", mariposa.TaskScale, mariposa.TaskQueued, c.add...).Spec)
		if err != nil || (ids(a.Terminate) == "t1") != c.ends {
			t.Errorf("a scale of %v: the freeze of %v that keeps %v ends: %v %v", c.add, c.freeze, c.kept, ids(a.Terminate), err)
		}
		waits := unlifting("t2", mariposa.TaskReprovision, c.add...)
		a, err = Admit([]Task{freeze}, waits.Spec)
		if err != nil || len(a.Terminate) > 0 || (ids(a.Thaw) == "t1") != c.blocks {
			t.Errorf("a change of %v beside a freeze of %v that keeps %v: %+v %v", c.add, c.freeze, c.kept, a, err)
		}
		if begins := ids(Ready([]Task{freeze, waits}, nobodyStuck)) == "t2"; begins == c.blocks {
			t.Errorf("a change of %v beside a freeze of %v that keeps %v begins: %v", c.add, c.freeze, c.kept, begins)
		}
	}
}

func TestWhatWaitsForAThawHoldsNobodyBack(t *testing.T) {
	waits := unlifting("t1", mariposa.TaskReprovision, "web")
	waits.Frozen = true
	start := task("t2", mariposa.TaskStart, mariposa.TaskQueued, "web")
	if got := ids(Ready([]Task{waits, start}, nobodyStuck)); got != "t2" {
		t.Fatalf("ready are %q", got)
	}
}

func TestWhatStandsAsideBeginsAtOnceBesideEverything(t *testing.T) {
	for _, kind := range kinds {
		there, aside := task("t1", kind, mariposa.TaskActive), unlifting("t2", mariposa.TaskStart, "web")
		aside.Spec.Immediate, aside.Frozen = true, true
		if a, err := Admit([]Task{there}, aside.Spec); err != nil || len(a.Terminate)+len(a.Thaw) > 0 {
			t.Errorf("a thaw beside a %s: %+v %v", kind, a, err)
		}
		if got := ids(Ready([]Task{there, aside}, nobodyStuck)); got != "t2" {
			t.Errorf("a thaw beside a %s: ready are %q", kind, got)
		}
		aside.Status.State = mariposa.TaskActive
		late := task("t3", kind, mariposa.TaskQueued)
		if a, err := Admit([]Task{aside}, late.Spec); err != nil || len(a.Terminate) > 0 {
			t.Errorf("a %s beside a thaw: %+v %v", kind, a, err)
		}
		if got := ids(Ready([]Task{aside, late}, nobodyStuck)); got != "t3" {
			t.Errorf("a %s waits for a thaw", kind)
		}
	}
}

func TestSeveralOlderTasksAreAllReckonedWith(t *testing.T) {
	open := []Task{
		task("t1", mariposa.TaskStart, mariposa.TaskActive, "db"), task("t2", mariposa.TaskScale, mariposa.TaskActive, "web"),
		task("t3", mariposa.TaskReprovision, mariposa.TaskActive, "web"), task("t4", mariposa.TaskScale, mariposa.TaskQueued, "db"),
		repair("t5", mariposa.TaskActive, "app"),
	}
	for _, c := range []struct {
		name       string
		add        Task
		rejected   string
		terminates string
		waitsFor   []string // each of them alone keeps it waiting
	}{
		{"a stop ends them all", task("t9", mariposa.TaskStop, mariposa.TaskQueued), "", "t1 t2 t3 t4", nil},
		{"a freeze ends them all", task("t9", mariposa.TaskFreeze, mariposa.TaskQueued), "", "t1 t2 t3 t4", nil},
		{"a start of web waits for both", task("t9", mariposa.TaskStart, mariposa.TaskQueued, "web"), "", "", []string{"t2", "t3"}},
		{"a scale of both is refused by one", task("t9", mariposa.TaskScale, mariposa.TaskQueued, "db", "web"), "t2", "", nil},
		{"a reprovision ends one, waits for another and runs beside the third", task("t9", mariposa.TaskReprovision, mariposa.TaskQueued, "db", "web"), "", "t3", []string{"t1"}},
		{"a reprovision of app meets only a repair", task("t9", mariposa.TaskReprovision, mariposa.TaskQueued, "app"), "", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := Admit(open, c.add.Spec)
			if c.rejected != "" {
				if err == nil || !strings.Contains(err.Error(), c.rejected) {
					t.Fatalf("refusal is %v", err)
				}
				return
			}
			if err != nil || ids(a.Terminate) != c.terminates {
				t.Fatalf("%v, terminates %q", err, ids(a.Terminate))
			}
			left := slices.DeleteFunc(slices.Clone(open), func(o Task) bool { return strings.Contains(c.terminates, o.ID) })
			for _, stuck := range c.waitsFor {
				ready := Ready(append(slices.Clone(left), c.add), func(o Task) bool { return slices.Contains(c.waitsFor, o.ID) && o.ID != stuck })
				if strings.Contains(ids(ready), "t9") {
					t.Errorf("it does not wait for %s", stuck)
				}
			}
			ready := Ready(append(slices.Clone(left), c.add), func(o Task) bool { return slices.Contains(c.waitsFor, o.ID) })
			if !strings.Contains(ids(ready), "t9") {
				t.Errorf("it waits for something else")
			}
		})
	}
}

func TestTerminatingATask(t *testing.T) {
	open := []Task{
		task("t1", mariposa.TaskReprovision, mariposa.TaskActive, "web"), task("t2", mariposa.TaskScale, mariposa.TaskActive, "web"),
		task("t3", mariposa.TaskStart, mariposa.TaskQueued, "web"), task("t4", mariposa.TaskFreeze, mariposa.TaskActive, "db"),
		repair("t5", mariposa.TaskActive, "app"), task("t6", mariposa.TaskScale, mariposa.TaskCompleted, "web"),
	}
	for _, c := range []struct {
		name, id, ends, freezes string
		refused                 string
	}{
		{"an active one freezes its scope, and with it the others there", "t1", "t1 t2 t3", "web", ""},
		{"a queued one is dropped and nothing is frozen", "t3", "t3", "", ""},
		{"a freeze is ended by a thaw", "t4", "", "", "task t4 is a freeze"},
		{"a repair freezes its service", "t5", "t5", "app", ""},
		{"what has ended cannot be", "t6", "", "", "has already ended"},
		{"what is not there cannot be", "t7", "", "", "has already ended"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, freeze, err := Terminate(open, c.id)
			if c.refused != "" {
				if mariposa.CodeOf(err) != mariposa.Conflict || !strings.Contains(err.Error(), c.refused) {
					t.Fatalf("refusal is %v", err)
				}
				return
			}
			scope := ""
			if freeze != nil {
				scope = strings.Join(freeze.Services, " ")
				if freeze.Task != mariposa.TaskFreeze || freeze.Patch.Mode != mariposa.ModeFreeze {
					t.Errorf("adds %+v", freeze)
				}
			}
			if err != nil || ids(a.Terminate) != c.ends || scope != c.freezes {
				t.Errorf("%v, ends %q, freezes %q", err, ids(a.Terminate), scope)
			}
		})
	}
}

func TestWaitingTasksBeginInTheOrderTheyCame(t *testing.T) {
	open := []Task{
		task("t5", mariposa.TaskStart, mariposa.TaskQueued, "web"),
		task("t3", mariposa.TaskReprovision, mariposa.TaskQueued, "web"),
		task("t4", mariposa.TaskScale, mariposa.TaskQueued, "db"),
		task("t2", mariposa.TaskScale, mariposa.TaskQueued, "web"),
	}
	if got := ids(Ready(open, nobodyStuck)); got != "t2 t3 t4" { // scale and reprovision go together; the start waits for both
		t.Fatalf("ready are %q", got)
	}
	same := []Task{task("t1b", mariposa.TaskScale, mariposa.TaskQueued, "web"), task("t1a", mariposa.TaskStart, mariposa.TaskQueued, "web")}
	if got := ids(Ready(same, nobodyStuck)); got != "t1a" {
		t.Fatalf("of two that came together the lower id is the older, not %q", got)
	}
}

// TestTheQueueNeverStarves lets people add any tasks: as long as active tasks
// end, every admitted task gets its turn, and no two tasks are ever active that
// the table keeps apart. Only a task that waits for a thaw may be overtaken,
// and then runs together with the one that overtook it.
func TestTheQueueNeverStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var open []Task
		overtaken := map[[2]string]bool{} // the older, the newer
		drop := func(gone []Task) {
			open = slices.DeleteFunc(open, func(o Task) bool { return slices.ContainsFunc(gone, func(g Task) bool { return g.ID == o.ID }) })
		}
		begin := func() {
			for _, r := range Ready(open, nobodyStuck) {
				r.Status.State = mariposa.TaskActive
				for _, o := range open {
					if o.ID < r.ID && o.State() == mariposa.TaskQueued && blocks(o, r) {
						overtaken[[2]string{o.ID, r.ID}] = slices.ContainsFunc(open, func(f Task) bool {
							return freezeBlocks(f, o.Spec)
						})
					}
				}
			}
			for i, a := range open {
				for _, b := range open[i+1:] {
					partly := a.Spec.Task == mariposa.TaskFreeze && !includes(b.Spec.Services, a.Spec.Services) // it keeps the rest of its scope
					if !partly && !overtaken[[2]string{a.ID, b.ID}] && a.State() == mariposa.TaskActive && b.State() == mariposa.TaskActive &&
						Overlap(a.Spec.Services, b.Spec.Services) && table[a.Spec.Task][b.Spec.Task] != concurrent {
						t.Fatalf("%s (%s) and %s (%s) are both active", a.ID, a.Spec.Task, b.ID, b.Spec.Task)
					}
				}
			}
		}
		for n := range rapid.IntRange(1, 30).Draw(t, "added") {
			scope := rapid.SampledFrom([][]string{nil, {"web"}, {"db"}, {"db", "web"}}).Draw(t, "scope")
			add := task(fmt.Sprintf("t%03d", n), rapid.SampledFrom(kinds).Draw(t, "kind"), mariposa.TaskQueued, scope...)
			add.Spec.LiftsFreeze = rapid.Bool().Draw(t, "lifts")
			if a, err := Admit(open, add.Spec); err == nil {
				drop(a.Terminate)
				open = append(open, add)
			}
			begin()
			if rapid.Bool().Draw(t, "one ends") {
				if at := slices.IndexFunc(open, func(o Task) bool { return o.State() == mariposa.TaskActive }); at >= 0 {
					drop(open[at : at+1 : at+1])
				}
			}
		}
		for len(open) > 0 {
			begin()
			active := slices.DeleteFunc(slices.Clone(open), func(o Task) bool { return o.State() != mariposa.TaskActive })
			if len(active) == 0 {
				t.Fatalf("%s wait for nothing", ids(open))
			}
			drop(active)
		}
	})
}

// versionTask is a task that brings a version into force.
func versionTask(id string, services ...string) Task {
	t := task(id, mariposa.TaskReprovision, mariposa.TaskQueued, services...)
	t.Spec.Supersedes, t.Spec.LiftsFreeze, t.Spec.Patch.Number = true, false, 2
	return t
}

func TestAVersionTakesThePlaceOfAStart(t *testing.T) {
	active, queued := mariposa.TaskActive, mariposa.TaskQueued
	for _, c := range []struct {
		name        string
		open        []Task
		add         Task
		ends, ready string
	}{
		{"a start that runs ends", []Task{task("t1", mariposa.TaskStart, active)}, versionTask("t2", "web"), "t1", "t2"},
		{"a start of a service that runs ends", []Task{task("t1", mariposa.TaskStart, active, "web")}, versionTask("t2", "db", "web"), "t1", "t2"},
		{"a start of another service goes on", []Task{task("t1", mariposa.TaskStart, active, "db")}, versionTask("t2", "web"), "", "t2"},
		{"a start of the whole that has not begun ends", []Task{task("t1", mariposa.TaskStart, queued)}, versionTask("t2", "web"), "t1", "t2"},
		{"a start of a service that has not begun goes first", []Task{task("t1", mariposa.TaskStart, queued, "web")}, versionTask("t2", "web"), "", "t1"},
		{"a change of scale that waited for the start goes on", []Task{task("t1", mariposa.TaskStart, active), task("t2", mariposa.TaskScale, queued, "web")}, versionTask("t3", "web"), "t1", "t2 t3"},
		{
			"a start goes on while the version waits for a thaw",
			[]Task{task("t1", mariposa.TaskStart, active, "web"), task("t2", mariposa.TaskFreeze, active, "db")},
			versionTask("t3", "db", "web"), "", "",
		},
		{
			"a start that waits for the same thaw ends",
			[]Task{task("t1", mariposa.TaskFreeze, active), func() Task { s := task("t2", mariposa.TaskStart, queued); s.Spec.LiftsFreeze = false; return s }()},
			versionTask("t3", "web"), "t2", "",
		},
		{"an explicit reprovision waits for the start", []Task{task("t1", mariposa.TaskStart, active)}, task("t2", mariposa.TaskReprovision, queued, "web"), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := Admit(c.open, c.add.Spec)
			if err != nil || ids(a.Terminate) != c.ends {
				t.Fatalf("ends %q, %v", ids(a.Terminate), err)
			}
			left := slices.DeleteFunc(slices.Clone(c.open), func(o Task) bool {
				return slices.ContainsFunc(a.Terminate, func(e Task) bool { return e.ID == o.ID })
			})
			if got := ids(Ready(append(left, c.add), nobodyStuck)); got != c.ready {
				t.Fatalf("ready are %q, not %q", got, c.ready)
			}
		})
	}
}

// What waited for a thaw takes the start's place when it begins, not before.
func TestAVersionThatWaitedForAThawMayBeginBesideAStart(t *testing.T) {
	start, add := task("t1", mariposa.TaskStart, mariposa.TaskActive, "web"), versionTask("t3", "db", "web")
	if got := ids(Ready([]Task{start, add}, nobodyStuck)); got != "t3" {
		t.Fatalf("ready are %q", got)
	}
	if !Supersedes(start.Spec, add.Spec) || Supersedes(add.Spec, start.Spec) {
		t.Fatal("the start is not ended by it")
	}
}

// A task that brings a version without an approval waits, and others wait for it only
// where nothing is in force that they could be done to.
func TestAnUnapprovedTaskWaits(t *testing.T) {
	t.Parallel()
	start := Task{ID: "1", Spec: &mariposa.TaskSpec{Task: mariposa.TaskStart, Origin: mariposa.OriginUser}, Unapproved: true}
	scale := Task{ID: "2", Spec: &mariposa.TaskSpec{Task: mariposa.TaskScale, Origin: mariposa.OriginUser}}
	for _, stuck := range []bool{false, true} {
		ready := Ready([]Task{start, scale}, func(t Task) bool { return t.Unapproved && stuck })
		if len(ready) > 0 != stuck || stuck && ready[0].ID != "2" {
			t.Errorf("stuck %v: %v", stuck, ready)
		}
	}
	start.Unapproved = false
	if ready := Ready([]Task{start, scale}, func(Task) bool { return false }); len(ready) != 1 || ready[0].ID != "1" {
		t.Errorf("once it is approved: %v", ready)
	}
}
