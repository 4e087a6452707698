package api_test

import (
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mariposa"
	"mariposa/contract"
	"mariposa/store"
)

// past writes ended tasks of some projects, unevenly mixed, and returns them, newest first.
func (h *testServer) past(n int, projects ...string) []store.Write {
	chance := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same past each time
	all := make([]store.Write, n)
	for i := range all {
		// The oldest tasks belong mostly to the first project, and so on.
		p := projects[min(len(projects)-1, (i*len(projects)/n+chance.IntN(2)*chance.IntN(len(projects)))%len(projects))]
		spec := &mariposa.TaskSpec{Project: p, Task: mariposa.TaskScale, Origin: mariposa.OriginUser, Created: time.Now()}
		if chance.IntN(2) == 0 {
			spec.Services = []string{[]string{"web", "db"}[chance.IntN(2)]}
		}
		state := []mariposa.TaskState{mariposa.TaskCompleted, mariposa.TaskFailed, mariposa.TaskTerminated}[chance.IntN(3)]
		all[i] = store.Write{
			Kind: mariposa.KindTask, ID: newID(), Project: p, Spec: spec, Status: &mariposa.TaskStatus{State: state}, Archive: true,
			Event: mariposa.Event{Kind: "task." + string(state), Project: p},
		}
	}
	h.commit(store.Unit{Writes: all})
	slices.Reverse(all)
	return all
}

// For any caller, page size and filter, the pages together contain every task once,
// newest first.
func TestPagesOfTheHistoryAreTheWholeOfIt(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	projects := []string{w.shop.ID}
	for _, name := range []string{"till", "depot", "fleet"} {
		projects = append(projects, want[contract.Changed](w.asUser("olga").call("POST", "/v1/projects?organization=acme&name="+name, hello), 201).ID)
	}
	past := w.past(700, append(projects, w.dark.ID)...)
	since := past[len(past)-1].ID
	rapid.Check(t, func(rt *rapid.T) {
		who := rapid.SampledFrom([]string{"olga", "vera", "ulla", "admin"}).Draw(rt, "who")
		seen := map[string][]string{"olga": projects, "vera": {w.shop.ID}, "ulla": {w.dark.ID}, "admin": append([]string{w.dark.ID}, projects...)}[who]
		state := rapid.SampledFrom([]string{"", "failed", "completed"}).Draw(rt, "state")
		service := rapid.SampledFrom([]string{"", "web"}).Draw(rt, "service")
		project := rapid.SampledFrom([]string{"", seen[0]}).Draw(rt, "project")
		var wanted []string
		for _, one := range past {
			spec := one.Spec.(*mariposa.TaskSpec)
			if slices.Contains(seen, spec.Project) && (project == "" || spec.Project == project) &&
				(state == "" || string(one.Status.(*mariposa.TaskStatus).State) == state) &&
				(service == "" || len(spec.Services) == 0 || spec.Services[0] == service) {
				wanted = append(wanted, one.ID)
			}
		}
		query := url.Values{"all": {"true"}, "limit": {strconv.Itoa(rapid.SampledFrom([]int{7, 40, 200, 699, 1000}).Draw(rt, "limit"))}}
		for key, value := range map[string]string{"state": state, "service": service, "project": project} {
			if value != "" {
				query.Set(key, value)
			}
		}
		var got []string
		for {
			page := want[contract.Tasks](w.asUser(who).call("GET", "/v1/queue?"+query.Encode(), nil), 200)
			for _, task := range page.Tasks {
				if task.ID >= since { // not those that made the projects
					got = append(got, task.ID)
				}
			}
			if page.Marker == "" {
				break
			}
			query.Set("marker", page.Marker)
		}
		if !slices.Equal(got, wanted) {
			rt.Fatalf("%s is shown %d of %d tasks:\n%s\nwanted\n%s", who, len(got), len(wanted), strings.Join(got, " "), strings.Join(wanted, " "))
		}
	})
}

// Tasks that end between pages keep their position: all pages together contain each
// task once, and open tasks are omitted only after they have ended.
func TestATaskThatEndsBetweenTwoPagesIsNeitherShownTwiceNorLeftOut(t *testing.T) {
	t.Parallel()
	for who, query := range map[string]string{"olga": "all=true", "admin": "all=true&organization=acme", "vera": "all=true"} {
		w := newTestTeams(t)
		open := w.past(60, w.shop.ID)
		for i := range open {
			open[i].ID, open[i].Status, open[i].Archive = newID(), nil, false
		}
		w.commit(store.Unit{Writes: open})
		chance := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // the same ends each time
		for _, kind := range []string{query, strings.Replace(query, "all=true", "state=queued", 1)} {
			ended := map[string]bool{}
			seen := w.turning(who, kind, func() {
				one := open[chance.IntN(len(open))]
				one.Spec, one.Status, one.Archive = nil, &mariposa.TaskStatus{State: mariposa.TaskCompleted}, true
				w.commit(store.Unit{Writes: []store.Write{one}})
				ended[one.ID] = true
			})
			for _, one := range open {
				if n := seen[one.ID]; n != 1 && (n > 1 || kind == query || !ended[one.ID] && w.task(one.ID).State == mariposa.TaskQueued) {
					t.Errorf("%s is shown a task %d times by %s", who, n, kind)
				}
			}
		}
	}
}

// turning reads all pages, counts the tasks on them, and calls a function after each.
func (w *testTeams) turning(who, query string, after func()) map[string]int {
	w.t.Helper()
	seen := map[string]int{}
	for marker := ""; ; {
		page := want[contract.Tasks](w.asUser(who).call("GET", "/v1/queue?limit=7&"+query+"&marker="+marker, nil), 200)
		for _, task := range page.Tasks {
			seen[task.ID]++
		}
		after()
		if marker = page.Marker; marker == "" {
			return seen
		}
	}
}

func TestOpenTasksAreListedByWhoseTheyAreAndHowTheyStand(t *testing.T) {
	t.Parallel()
	w := newTestTeams(t)
	ids := map[string]string{}
	for _, one := range []struct {
		name, project string
		state         mariposa.TaskState
		services      []string
	}{
		{"shop waits", w.shop.ID, "", []string{"web"}},
		{"shop works", w.shop.ID, mariposa.TaskActive, []string{"db"}},
		{"dark works", w.dark.ID, mariposa.TaskActive, nil},
	} {
		id := newID()
		ids[id] = one.name
		write := store.Write{Kind: mariposa.KindTask, ID: id, Project: one.project, Spec: &mariposa.TaskSpec{Project: one.project, Services: one.services}}
		if one.state != "" {
			write.Status = &mariposa.TaskStatus{State: one.state}
		}
		w.commit(store.Unit{Writes: []store.Write{write}})
	}
	services := w.picture.Projects.Get(w.shop.ID).Spec().Services
	for _, c := range []struct {
		who, query string
		want       []string
	}{
		{"admin", "", []string{"dark works", "shop works", "shop waits"}},
		{"admin", "state=active", []string{"dark works", "shop works"}},
		{"admin", "state=active&all=true", []string{"dark works", "shop works"}},
		{"admin", "organization=acme", []string{"shop works", "shop waits"}},
		{"olga", "", []string{"shop works", "shop waits"}},
		{"olga", "state=queued", []string{"shop waits"}},
		{"olga", "service=db", []string{"shop works"}},
		{"olga", "service=" + services["web"], []string{"shop waits"}},
		{"olga", "project=shop&organization=acme&service=" + services["db"], []string{"shop works"}},
		{"ulla", "", []string{"dark works"}},
		{"ulla", "service=" + services["web"], []string{"dark works"}}, // a task of the whole project is about every service
		{"sam", "", nil},
	} {
		page := want[contract.Tasks](w.asUser(c.who).call("GET", "/v1/queue?limit=9&"+c.query, nil), 200)
		var got []string
		for _, task := range page.Tasks {
			if name := ids[task.ID]; name != "" { // not those that made the projects
				got = append(got, name)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s is shown %q by %q, want %q", c.who, got, c.query, c.want)
		}
	}
}
