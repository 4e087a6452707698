package main_test

import (
	"regexp"
	"strings"
	"testing"
)

var webSlot = regexp.MustCompile(`\bweb\.\d+`)

// TestTheCommandsOfTheSeedWork runs the commands of RFD 36 in all their spellings on a
// real server.
func TestTheCommandsOfTheSeedWork(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.env = []string{"MARIPOSA_YES=1"}
	one := fileOf(t, "services: {web: {compute_type: dummy, scale: 2, update: {min_healthy: 0}}, db: {compute_type: dummy, update: {min_healthy: 0}}}")
	two := fileOf(t, "services: {web: {compute_type: dummy, scale: 2, dummy: {name_len: 9}, update: {min_healthy: 0}}, db: {compute_type: dummy, update: {min_healthy: 0}}}")
	service := fileOf(t, "compute_type: dummy\nscale: 1\nupdate: {min_healthy: 0}\n")
	values := fileOf(t, "imported: 1\n")
	for _, c := range []struct{ line, says string }{
		{"projects", ""},
		{"project create shop -m ONE --wait", "version 1"},
		{"project add shop2 -m ONE --wait", "version 1"},
		{"project new shop3 -m ONE --wait", "version 1"},
		{"organization list", "admin"},
		{"organization set admin", "admin"},
		{"project set shop", "shop"},
		{"projects", "shop *"},
		{"project ls", "shop2"},
		{"project list", "shop3"},
		{"project get", "shop"},
		{"project show shop", "shop"},
		{"project update -m TWO --previous 1 --rolling 1 --wait", "version 2"},
		{"project update -m ONE --force --count 1 --wait", "version 3"},
		{"project reprovision --canary 1 --wait", ""},
		{"project reprovision --wait", ""},
		{"project versions", "VERSION"},
		{"project version list", "VERSION"},
		{"project version ls", "VERSION"},
		{"project version get 1", "services:"},
		{"project rollback 2 --rolling 1 --wait", ""},
		{"project revert 1 --canary 1 --wait", ""},
		{"project reprovision --wait", ""},
		{"project scale web=3 db=+1 --wait", ""},
		{"project scale web=-1 --wait", ""},
		{"project instances", "web."},
		{"instances", "web."},
		{"instance ls", "web."},
		{"project restart --service web --count 1 --rolling 1 --wait", ""},
		{"project restart --wait", ""},
		{"project reprovision --instance SLOT --wait", ""},
		{"project reprovision --compute_node NODE --wait", ""},
		{"project reprovision --cn NODE --wait", ""},
		{"project reprovision --version 1 --wait", ""},
		{"project stop --wait", ""},
		{"project start --wait", ""},
		{"services", "web"},
		{"service list", "web"},
		{"service add cache -m SERVICE --wait", "added"},
		{"service get cache", "cache"},
		{"service update cache -m SERVICE --message same", ""},
		{"service scale cache=2 --wait", ""},
		{"service scale cache 3 --wait", ""},
		{"service versions cache", "VERSION"},
		{"service instances cache", "cache.3"},
		{"service ps cache", "cache.3"},
		{"service stop cache --wait", ""},
		{"service start cache --wait", ""},
		{"service reprovision cache --wait", ""},
		{"service restart cache --wait", ""},
		{"service rm cache --wait", "removed"},
		{"metas", ""},
		{"meta set key value", "key is set"},
		{"meta add key2 value", "key2 is set"},
		{"meta create key3 value", "key3 is set"},
		{"meta new key4 value", "key4 is set"},
		{"meta update key4 other", "key4 is set"},
		{"meta get key", "value"},
		{"meta ls", "key4"},
		{"meta set n 1", "n is set"},
		{"meta increment n 2", "3"},
		{"meta decrement n 1", "2"},
		{"meta rm key", "is removed"},
		{"meta del key2", "is removed"},
		{"meta delete key3", "is removed"},
		{"meta import -m VALUES", "added imported"},
		{"queue freeze --service web,db", "task"},
		{"queue unfreeze", "task"},
		{"project freeze", "task"},
		{"project unfreeze --wait", "task"},
		{"queue ls", ""},
		{"queue list --all", "TASK"},
		{"project rename shop shop4", "shop4"},
		{"project copy shop4 shop5", "shop5"},
		{"project del shop2 -f --wait", ""},
		{"project delete shop3 -f --wait", ""},
		{"project rm shop5 -f --wait", ""},
	} {
		line := strings.NewReplacer("ONE", one, "TWO", two, "SERVICE", service, "VALUES", values).Replace(c.line)
		if strings.Contains(line, "NODE") {
			line = strings.ReplaceAll(line, "NODE", h.nodeName())
		}
		if strings.Contains(line, "SLOT") { // which slots remain after a scale-down depends on the ages of the instances
			line = strings.ReplaceAll(line, "SLOT", webSlot.FindString(h.ok("instances")))
		}
		out, errs, code := h.mariposa("", strings.Fields(line)...)
		if code != 0 || !strings.Contains(out+errs, c.says) {
			t.Errorf("mariposa %s: exit %d, without %q\n%s%s", c.line, code, c.says, out, errs)
		}
	}
	h.ok("project", "pause") // keeps the update from ending before it is terminated
	_, task, _ := strings.Cut(strings.TrimSpace(h.ok("project", "update", "-m", two, "--force")), "task ")
	h.wants(0, "is terminated", "queue", "stop", task)
}
