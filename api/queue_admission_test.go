package api_test

import (
	"fmt"
	"strings"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// admission is the table of the contract (row: existing task, column: new task),
// independent of the code that implements it.
const admission = `
              start      stop       scale       reprovision  freeze
start         reject     terminate  fifo        fifo         terminate
stop          reject     reject     reject      reject       terminate
scale         fifo       terminate  reject      concurrent   terminate
reprovision   fifo       terminate  concurrent  terminate    terminate
freeze        terminate  terminate  terminate   terminate    reject
`

// cell is an older task, a newer task and the expected outcome.
type cell struct{ older, newer, verdict string }

func cells() []cell {
	var all []cell
	lines := strings.Split(strings.TrimSpace(admission), "\n")
	columns := strings.Fields(lines[0])
	for _, line := range lines[1:] {
		row := strings.Fields(line)
		for i, column := range columns {
			all = append(all, cell{row[0], column, row[i+1]})
		}
	}
	return all
}

const trio = "services:\n  a: {compute_type: dummy, update: {min_healthy: 0}}\n" +
	"  b: {compute_type: dummy, update: {min_healthy: 0}}\n  c: {compute_type: dummy, update: {min_healthy: 0}}\n"

// action returns the request body for a task in a scope; no services: the whole project.
func action(kind string, services []string) string {
	if kind == "scale" {
		if len(services) == 0 {
			services = []string{"a", "b", "c"}
		}
		return `{"action":"scale","scale":{"` + strings.Join(services, `":"+1","`) + `":"+1"}}`
	}
	if len(services) == 0 {
		return `{"action":"` + kind + `"}`
	}
	return `{"action":"` + kind + `","services":["` + strings.Join(services, `","`) + `"]}`
}

func TestEveryPairOfTasksMeetsByTheTable(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for i, scopes := range []struct {
		name         string
		older, newer []string
		apart        bool
		freezes      string // the verdict between two freezes: one that freezes more is not refused
		keeps        bool   // an older freeze keeps services that the newer task does not name
	}{
		{"the same service", []string{"a"}, []string{"a"}, false, "reject", false},
		{"the whole, then a service", nil, []string{"b"}, false, "reject", true},
		{"a service, then the whole", []string{"c"}, nil, false, "terminate", false},
		{"services that share one", []string{"a", "b"}, []string{"b", "c"}, false, "concurrent", true},
		{"services apart", []string{"a"}, []string{"b"}, true, "concurrent", true},
	} {
		t.Run(scopes.name, func(t *testing.T) {
			t.Parallel()
			for j, c := range cells() {
				switch {
				case scopes.apart:
					c.verdict = "concurrent"
				case c.older == "freeze" && c.newer == "freeze":
					c.verdict = scopes.freezes
				case c.older == "freeze" && scopes.keeps:
					c.verdict = "kept"
				}
				t.Run(c.older+" then "+c.newer, func(t *testing.T) {
					m := &meeting{testServer: h.in(t), gate: g, project: fmt.Sprintf("p%d-%d", i, j)}
					m.prepare(c, scopes.older, scopes.newer, scopes.apart)
					m.play(c, scopes.older, scopes.newer)
				})
			}
		})
	}
}

// meeting is a project with two overlapping tasks.
type meeting struct {
	*testServer
	gate    *gatedDriver
	project string
}

// prepare brings the project into a state in which both tasks have something to do.
func (m *meeting) prepare(c cell, older, newer []string, apart bool) {
	m.t.Helper()
	m.create(m.project, trio)
	m.awaitRest(m.project)
	if c.older == "start" {
		m.awaitTask(m.startTask(m.project, "%s", action("stop", older)), mariposa.TaskCompleted)
	}
	if c.newer == "start" && apart {
		m.awaitTask(m.startTask(m.project, "%s", action("stop", newer)), mariposa.TaskCompleted)
	}
	m.gate.close(m.project)
}

func (m *meeting) play(c cell, older, newer []string) {
	m.t.Helper()
	old := m.startTask(m.project, "%s", action(c.older, older))
	m.awaitState(old, mariposa.TaskActive)
	before := m.of(m.project, "b").Goal
	if c.verdict == "reject" {
		m.putAction(m.project, "%s", action(c.newer, newer)).wantError(409, mariposa.Conflict, old)
		if open := m.openTasks(m.project); len(open) != 1 || open[0].ID != old || open[0].State != mariposa.TaskActive {
			m.t.Errorf("after the refusal there are %+v", open)
		}
		return
	}
	young := m.startTask(m.project, "%s", action(c.newer, newer))
	switch c.verdict {
	case "terminate":
		if task := m.task(old); task.State != mariposa.TaskTerminated || task.EndedBy != young || task.Finished == nil {
			m.t.Errorf("the older one is %+v", task)
		}
		m.until("the newer one to begin", func() bool { return m.task(young).State != mariposa.TaskQueued })
	case "fifo":
		m.waits(c, old, young, before)
	case "kept":
		m.until("the newer one to begin", func() bool { return m.task(young).State != mariposa.TaskQueued })
		if task := m.task(old); task.State != mariposa.TaskActive || !strings.HasPrefix(task.Reason, "still frozen: a") {
			m.t.Errorf("the older one is %+v", task)
		}
	case "concurrent":
		m.awaitState(young, mariposa.TaskActive)
		if task := m.task(old); task.State != mariposa.TaskActive {
			m.t.Errorf("the older one is %+v", task)
		}
	}
	m.finish(c, old, young)
}

// waits checks that the newer task waits and its goal is not applied yet.
func (m *meeting) waits(c cell, old, young string, before int) {
	m.t.Helper()
	task := m.task(young)
	if task.State != mariposa.TaskQueued || len(task.WaitsFor) != 1 || task.WaitsFor[0] != old || task.Started != nil {
		m.t.Errorf("the newer one does not wait: %+v", task)
	}
	if now := m.of(m.project, "b").Goal; now != before {
		m.t.Errorf("the goal of b is %d before its task has begun", now)
	}
	m.gate.open(m.project)
	first, next := m.awaitTask(old, mariposa.TaskCompleted), m.awaitTask(young, mariposa.TaskCompleted)
	if next.Started == nil || next.Started.Before(*first.Finished) {
		m.t.Errorf("the newer one began at %v, before the older had ended at %v", next.Started, first.Finished)
	}
	if c.newer == "scale" && m.of(m.project, next.Services[0]).Goal != 2 {
		m.t.Errorf("its goal is not in force: %+v", m.state(m.project))
	}
}

// finish waits until both tasks have ended and no instance is left half-created.
func (m *meeting) finish(c cell, old, young string) {
	m.t.Helper()
	m.gate.open(m.project)
	if c.newer != "freeze" {
		m.awaitTask(young, mariposa.TaskCompleted)
	}
	if thaw := want[contract.Changed](m.putAction(m.project, `{"action":"thaw"}`), 202); thaw.Task != nil {
		m.awaitTask(*thaw.Task, mariposa.TaskCompleted)
	} else if c.newer == "freeze" || c.older == "freeze" && (c.verdict == "concurrent" || c.verdict == "kept") {
		m.t.Error("nothing was frozen")
	}
	m.awaitRest(m.project)
	m.until("every instance to be in its place", func() bool {
		state := m.state(m.project)
		for _, s := range state.Services {
			wanted := s.Goal
			if s.Status == mariposa.StatusStopped {
				wanted = 0
			}
			if s.Running != wanted || s.Starting+s.Stopping+s.Failed > 0 {
				return false
			}
		}
		return true
	})
	if task := m.task(old); !task.State.Ended() {
		m.t.Errorf("the older one is still %s", task.State)
	}
}

// With several older tasks, the table applies to each of them, unless one of them
// rejects the new task.
func TestATaskMeetsSeveralOlderOnes(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for name, c := range map[string]struct {
		older []string // kind and service
		newer string
		after string // the states of the older ones, and of the newer if it came to be
	}{
		"a stop of the whole ends all":             {[]string{"scale a", "reprovision a", "reprovision b"}, `{"action":"stop"}`, "terminated terminated terminated active"},
		"a freeze of the whole ends all":           {[]string{"stop a", "scale b", "reprovision c"}, `{"action":"freeze"}`, "terminated terminated terminated active"},
		"one that refuses leaves the others alone": {[]string{"reprovision a", "stop b"}, `{"action":"reprovision"}`, "active active"},
		"it waits for one and ends another":        {[]string{"reprovision a", "start b"}, `{"action":"reprovision"}`, "terminated active queued"},
		"it waits for one beside another":          {[]string{"scale a", "start b"}, `{"action":"reprovision"}`, "active active queued"},
		"it waits for two":                         {[]string{"scale a", "reprovision a", "reprovision b"}, `{"action":"start"}`, "active active active queued"},
		"it lifts one freeze and not the other":    {[]string{"freeze a", "freeze b"}, `{"action":"reprovision","services":["a"]}`, "terminated active active"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "p"+newID()[28:]
			h.create(project, trio)
			h.awaitRest(project)
			var ids []string
			for _, one := range c.older {
				if kind, service, _ := strings.Cut(one, " "); kind == "start" {
					h.awaitTask(h.startTask(project, "%s", action("stop", []string{service})), mariposa.TaskCompleted)
				}
			}
			g.close(project)
			for _, one := range c.older {
				kind, service, _ := strings.Cut(one, " ")
				id := h.startTask(project, "%s", action(kind, []string{service}))
				h.awaitState(id, mariposa.TaskActive)
				ids = append(ids, id)
			}
			if r := h.putAction(project, "%s", c.newer); r.status == 202 {
				ids = append(ids, *want[contract.Changed](r, 202).Task)
			} else {
				r.wantError(409, mariposa.Conflict, ids[1])
			}
			states := func() string {
				var all []string
				for _, id := range ids {
					all = append(all, string(h.task(id).State))
				}
				return strings.Join(all, " ")
			}
			h.until("the tasks to be "+c.after, func() bool { return states() == c.after })
			g.open(project)
			h.until("all but a freeze to end", func() bool {
				for _, id := range ids {
					if task := h.task(id); !task.State.Ended() && task.Task != mariposa.TaskFreeze {
						return false
					}
				}
				return true
			})
		})
	}
}

// A task does not wait for an older task that cannot make progress by itself.
func TestATaskDoesNotWaitBehindWhatIsStuck(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	for name, c := range map[string]struct {
		service string // of the version that is started
		status  mariposa.Status
	}{
		"blocked":     {"{compute_type: process, command: [none]}", mariposa.StatusBlocked},
		"backing off": {"{compute_type: dummy, dummy: {fail_prop: \"yes\"}}", mariposa.StatusBackingOff},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, project := h.in(t), "p"+newID()[28:]
			h.create(project, "services:\n  a: {compute_type: dummy, scale: 0}\n")
			h.awaitRest(project)
			h.awaitTask(h.startTask(project, `{"action":"stop"}`), mariposa.TaskCompleted)
			h.awaitTask(h.putManifest(project, "services:\n  a: "+c.service+"\n", ""), mariposa.TaskCompleted)
			h.awaitTask(h.startTask(project, `{"action":"scale","scale":{"a":1}}`), mariposa.TaskCompleted)
			start := h.startTask(project, `{"action":"start"}`)
			h.until("it to be stuck", func() bool { return h.of(project, "a").Status == c.status })
			scale := h.startTask(project, `{"action":"scale","scale":{"a":2}}`)
			h.awaitState(scale, mariposa.TaskActive)
			if s := h.of(project, "a"); s.Goal != 2 || h.task(start).State != mariposa.TaskActive {
				t.Errorf("beside it: %+v, %+v", s, h.task(start))
			}
		})
	}
	t.Run("held", func(t *testing.T) {
		t.Parallel()
		h := h.in(t)
		text := "services:\n  a: {compute_type: dummy, scale: 3, environment: {V: %d}, update: {min_healthy: 0}}\n  b: {compute_type: dummy, environment: {V: %d}, update: {min_healthy: 0}}\n"
		h.create("held", fmt.Sprintf(text, 1, 1))
		h.awaitRest("held")
		h.awaitTask(h.putManifest("held", fmt.Sprintf(text, 2, 1), "&canary=1"), mariposa.TaskCompleted)
		h.awaitTask(h.startTask("held", `{"action":"stop","services":["b"]}`), mariposa.TaskCompleted)
		g.close("held")
		start := h.startTask("held", `{"action":"start"}`)
		h.awaitState(start, mariposa.TaskActive)
		scale := h.startTask("held", `{"action":"scale","scale":{"a":"+1"}}`)
		h.awaitState(scale, mariposa.TaskActive)
		if s := h.of("held", "a"); s.Goal != 4 || h.task(start).State != mariposa.TaskActive {
			t.Errorf("beside it: %+v, %+v", s, h.task(start))
		}
		g.open("held")
		h.awaitTask(start, mariposa.TaskCompleted)
		h.awaitTask(scale, mariposa.TaskCompleted)
	})
}

// A user's task takes over automatic repairs. While it runs, repairs are its steps.
func TestAPersonsTaskTakesRepairsOver(t *testing.T) {
	t.Parallel()
	h := newTestServer(t, withPlanner)
	g := h.joinGated("n1")
	h.create("shop", trio)
	h.awaitRest("shop")
	g.close("shop")
	var repairs []contract.Task
	for id := range h.instances("shop", "a") {
		h.crash(id)
	}
	h.until("a repair", func() bool {
		repairs = h.openTasks("shop")
		return len(repairs) > 0
	})
	if r := repairs[0]; len(repairs) != 1 || r.Origin != mariposa.OriginMariposa || r.Author != "mariposa" || fmt.Sprint(r.Services) != "[a]" {
		t.Fatalf("the repair is %+v", repairs)
	}
	beside := h.startTask("shop", `{"action":"scale","scale":{"b":2}}`)
	h.awaitState(beside, mariposa.TaskActive)
	if task := h.task(repairs[0].ID); task.State != mariposa.TaskActive {
		t.Errorf("a task in another scope ended the repair: %+v", task)
	}
	scale := h.startTask("shop", `{"action":"scale","scale":{"a":2}}`)
	if task := h.awaitTask(repairs[0].ID, mariposa.TaskCompleted); task.Reason != "taken over by "+scale || task.EndedBy != scale {
		t.Errorf("the repair is %+v", task)
	}
	var victim string
	for id := range h.instances("shop", "b") {
		if h.instances("shop", "b")[id].State == mariposa.StateRunning {
			victim = id
		}
	}
	h.crash(victim)
	h.until("the repair of b to be a step", func() bool {
		asked := 0
		for _, step := range h.task(beside).Steps {
			if step.Step == "create" && step.Result == "asked" {
				asked++
			}
		}
		return asked == 2
	})
	g.open("shop")
	h.awaitTask(beside, mariposa.TaskCompleted)
	h.awaitTask(scale, mariposa.TaskCompleted)
	for _, task := range want[contract.Tasks](h.call("GET", "/v1/queue?all=true&project=shop", nil), 200).Tasks {
		if task.Origin == mariposa.OriginMariposa && task.ID != repairs[0].ID {
			t.Errorf("a repair of its own: %+v", task)
		}
	}
}
