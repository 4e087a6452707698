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

// past writes ended tasks of some projects, unevenly mixed, and returns them, newest
// first.
func (h *house) past(n int, projects ...string) []store.Write {
	chance := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same past each time
	all := make([]store.Write, n)
	for i := range all {
		// Of what was made first nearly all is the first project's, and so on.
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

// Whoever looks, however small the pages are and whatever is left out: the pages
// together are what there is, newest first, each task once.
func TestPagesOfTheHistoryAreTheWholeOfIt(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	projects := []string{w.shop.ID}
	for _, name := range []string{"till", "depot", "fleet"} {
		projects = append(projects, want[contract.Changed](w.by("olga").call("POST", "/v1/projects?organization=acme&name="+name, hello), 201).ID)
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
			page := want[contract.Tasks](w.by(who).call("GET", "/v1/queue?"+query.Encode(), nil), 200)
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
