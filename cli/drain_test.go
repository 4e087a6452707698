package cli

import (
	"context"
	"strings"
	"testing"
	"time"
)

const drainManifest = `services:
  web: {compute_type: dummy, scale: 3, update: {min_healthy: 0}}
`

const lostManifest = `services:
  web: {compute_type: dummy, scale: 3, update: {min_healthy: 0, order: stop-first}, reschedule: {after: 900}}
`

// lost3 waits until node3 is lost.
const lost3 = `~ /v1/nodes/node3 "status": ?"unknown"`

// What operators do with nodes, on a real server with three of them. Each script has a
// golden file.
func TestOperatorsDrainAndGiveUpNodes(t *testing.T) {
	t.Parallel()
	for name, sc := range map[string]script{
		"drain": {stuck: true, files: map[string]string{"MANIFEST": drainManifest}, lines: []string{
			hello + " --wait", "node drain node2 --dry-run", "node drain node2 --dry-run --json", "node drain node2 --dry-run --columns instance,to", "node drain node2 --dry-run --columns odd",
			"node drain node2 --deadline soon", "node drain node2 --deadline -5m", "node drain node2 --deadline 0", "node drain", "node drain node9", "node drain node9 --dry-run", "node drain node1 node2", "--as bob node drain node2",
			"node list", "node drain node2 --deadline 10m", `~ /v1/nodes/node2 "status": ?"drained"`, "node list", "node show node2", "node drain node2", "node drain node2 --dry-run",
			"node undrain node2", "node undrain node2", "node undrain node9", "--as bob node undrain node2", "node list", "node drain node2 --deadline none --json", "node undrain node2 --json",
		}},
		"drain-stays": {stuck: true, files: map[string]string{"MANIFEST": drainManifest}, lines: []string{
			hello + " --wait", "! -j hello instance create alone --compute-type dummy", `~ /v1/instances/alone "state": ?"running"`, "! project freeze hello", `~ /v1/state "status": ?"frozen"`,
			"! node reserve node2", "! node reserve node3", "node drain node1 --dry-run", "! node drain node1", `~ /v1/nodes/node1 "left": ?2`, "node list", "node show node1",
			`~ /v1/queue "reason_code": ?"drain-left"`, "queue list", "queue show $task0", "queue terminate $task0 --yes", "node list", "node show node1", "queue terminate $task0 --yes",
			"! project thaw hello", "! node unreserve node2", "node drain node1 --force", `~ /v1/nodes/node1 "status": ?"drained"`, "node show node1",
		}},
		"reserve": {stuck: true, lines: []string{
			"node reserve node2", "node reserve node2", "node list", "node show node2", "node unreserve node2", "node unreserve node2", "node reserve node9", "node unreserve node9", "node reserve", "--as bob node reserve node2", "node reserve node2 --json", "node list",
		}},
		"lost": {stuck: true, files: map[string]string{"MANIFEST": lostManifest}, lines: []string{
			hello + " --wait", "! node lose node3", lost3, "- node3", `~ /v1/state "running": ?2`, "! project scale hello web=4", `~ /v1/queue "waits":`, `~ /v1/state "running": ?3`,
			"queue list", "queue show $task0", "project scale hello web=5", "node drain node1 --dry-run", "queue terminate $task0 --yes", `~ /v1/state "status": ?"frozen"`, "node drain node1 --dry-run",
		}},
		"reschedule": {stuck: true, files: map[string]string{"MANIFEST": drainManifest}, lines: []string{
			hello + " --wait", "node reschedule-now", "node reschedule-now node1", "node reschedule-now node9", "node rm node3", "! node lose node3", lost3, "- node3", `~ /v1/state "node-away"`, "state", "node rm node3", "--as bob node reschedule-now node3",
			"project converge hello --service web --reschedule-now", `~ /v1/state "running": ?3`, `~ /v1/state !"converging"`, "project converge hello --reschedule-now", "project start hello --reschedule-now", "project converge --help",
			"node reschedule-now", `~ /v1/state "running": ?3`, "node reschedule-now node3", "node reschedule-now node3 --json", "node rm node3", "node rm node3 --force", "node list", "state",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			golden(t, "group-"+name, sc.story(t, newTeamServerWith(t, "node1", "node2", "node3")))
		})
	}
}

// With --wait, the command follows the drain to its end and its exit code says how it
// ended.
func TestADrainIsFollowedToItsEnd(t *testing.T) {
	t.Parallel()
	s := newTeamServerWith(t, "node1", "node2", "node3")
	s.again(t, drainManifest)
	r := (&run{f: s.proxy(t)}).do(t, "node", "drain", "node2", "--wait")
	r.expect(exitOK, strings.HasPrefix(r.stdout, "node2 is being drained\ntask "), strings.Contains(r.stderr, "drain node2: completed"))
	r = (&run{f: s.proxy(t)}).do(t, "node", "drain", "node2", "--wait")
	r.expect(exitOK, r.stdout == "node2 is unchanged: the node is drained already\n")

	for _, line := range []string{"node undrain node2", "node reserve node2", "node reserve node3", "-j hello instance create alone --compute-type dummy"} {
		r = (&run{f: s.proxy(t)}).do(t, strings.Fields(line)...)
		r.expect(exitOK)
	}
	s.awaitDocument("/v1/instances/alone", `"state": ?"running"`)
	r = (&run{f: s.proxy(t)}).do(t, "node", "drain", "node1", "--deadline", "100ms", "--wait")
	// The reason is that of web, unless the deadline comes before web has looked for a node.
	r.expect(exitFailed, strings.Contains(r.stderr, "mariposa: drain node1 failed: the drain was not complete at its deadline: 3 instances are left on node node1: "))
	r = (&run{f: s.proxy(t)}).do(t, "node", "show", "node1")
	r.expect(exitOK, strings.Contains(r.stdout, "drain stopped"), strings.Contains(r.stderr, "alone belongs to no service"))
	r = (&run{f: s.proxy(t)}).do(t, "node", "drain", "node1", "--deadline", "1h")
	r.expect(exitOK)
	r = (&run{f: s.proxy(t), tty: true, stdin: "n\n"}).do(t, "queue", "terminate", s.words("$task0")[0])
	r.expect(exitError, strings.Contains(r.stdout+r.stderr, "terminate drain node1 (0 of 3 done; what is left stays, and the node gets no new instances)?"))
}

// A thaw is followed as other tasks are.
func TestAThawThatWaitsForALostNodeIsNotSilent(t *testing.T) {
	t.Parallel()
	s := newTeamServerWith(t, "node1", "node2", "node3")
	s.again(t, lostManifest)
	(&run{f: s.proxy(t)}).do(t, "project", "freeze", "hello", "--wait").expect(exitOK)
	(&run{f: s.proxy(t)}).do(t, "node", "lose", "node3").expect(exitOK)
	s.awaitDocument("/v1/nodes/node3", `"status": ?"unknown"`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &until{text: "waits up to ", done: cancel}
	r := (&run{f: s.proxy(t), ctx: ctx, errs: out, quiet: 10 * time.Millisecond}).do(t, "project", "thaw", "hello", "--wait")
	said := out.String()
	r.expect(exitError, strings.Contains(said, "interrupted; the task continues"))
	if !strings.Contains(said, ": web: web.3-") || !strings.Contains(said, " is on node node3, which has been unknown since ") {
		t.Errorf("it says %q", said)
	}
}

// A task that waits for a lost node makes no events. The one who follows it learns what it
// waits for, for how long, and how to go on now.
func TestAWaitForALostNodeIsNotSilent(t *testing.T) {
	t.Parallel()
	for name, tty := range map[string]bool{"lines": false, "terminal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTeamServerWith(t, "node1", "node2", "node3")
			s.again(t, lostManifest)
			(&run{f: s.proxy(t)}).do(t, "node", "lose", "node3").expect(exitOK)
			s.awaitDocument("/v1/nodes/node3", `"status": ?"unknown"`)
			s.awaitDocument("/v1/state", `"running": ?2`)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &until{text: "waits up to ", done: cancel}
			r := (&run{f: s.proxy(t), ctx: ctx, errs: out, quiet: 10 * time.Millisecond, tty: tty}).do(t, "project", "scale", "hello", "web=4", "--wait")
			said := out.String()
			r.expect(exitError, strings.Contains(said, "interrupted; the task continues"))
			if tty {
				return // the line is cut
			}
			for _, part := range []string{": web: web.3-", " is on node node3, which has been unknown since ", "; to replace it now, run `mariposa project converge hello --reschedule-now`\n"} {
				if !strings.Contains(said, part) || strings.Count(said, "waits up to ") != 1 {
					t.Errorf("it says %q, without %q", said, part)
				}
			}
		})
	}
}
