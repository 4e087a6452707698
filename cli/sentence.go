package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
)

// A narrator turns events into sentences. It remembers names, because the event of a
// deletion no longer contains the name.
type narrator struct {
	now   func() time.Time
	names map[string]string // of projects, instances and nodes, by id
	said  map[string]string // the last sentence about each object
	why   map[string]string // the last reason given for each object
	// suggest adds the flags to the commands in a sentence about a project; nil: as it is.
	suggest func(project, organization, sentence string) string
}

// newNarrator returns a narrator whose commands have the flags that they need.
func (a *app) newNarrator() *narrator {
	n := newNarrator(a.env.Now)
	n.suggest = a.suggest
	return n
}

func newNarrator(now func() time.Time) *narrator {
	return &narrator{now: now, names: map[string]string{}, said: map[string]string{}, why: map[string]string{}}
}

// maxNames limits the memory of a narrator that runs for a long time.
const maxNames = 100_000

// lines formats a section of the feed. It reads all events before it formats any, because
// the name of a deleted object may come later.
func (n *narrator) lines(events []client.Event) []string {
	for _, e := range events {
		n.rememberName(e.Project, e.ProjectName)
		n.rememberName(e.Instance, e.InstanceName)
		n.rememberName(e.Node, e.NodeName)
	}
	var all []string
	for _, e := range events {
		if line, news := n.line(e); news {
			all = append(all, line)
		}
	}
	return all
}

// line formats an event with its time. It reports whether the event is news: a sentence
// is not repeated for the same object, and a project change that created a task is
// covered by the task's event.
func (n *narrator) line(e client.Event) (line string, news bool) {
	about := n.objectOf(e)
	if e.Kind == "project.updated" && e.Reason != "" && e.Reason == n.why["of the tasks of "+e.Project] {
		return "", false
	}
	if e.Subject() == "task" {
		n.why["of the tasks of "+e.Project] = n.reasonOf(e)
	}
	now := n.sentenceOf(n.withoutKnownReason(e, about))
	if n.suggest != nil {
		now = n.suggest(cmp.Or(e.ProjectName, n.names[e.Project]), "", now)
	}
	if last := n.said[about]; last == now || strings.HasPrefix(last, now+" (") { // at most without its reason
		return "", false
	}
	n.said[about] = now
	return n.stamp(e.Time) + " " + plain(now), true
}

// objectOf identifies the object of an event.
func (n *narrator) objectOf(e client.Event) string {
	switch e.Subject() {
	case "instance":
		return "instance " + e.Instance
	case "task":
		return "task " + e.Task
	case "project":
		if styles[e.Verb()] != none { // a status; changes by users are always news
			return "project " + e.Project
		}
	case "service":
		return "service " + e.Project + "/" + e.ServiceName
	case "node":
		return "node " + e.Node
	}
	return fmt.Sprintf("revision %d", e.Revision) // other events are rare
}

// reasonOf returns the reason of an event, or else that of its object.
func (n *narrator) reasonOf(e client.Event) string {
	if e.Reason != "" {
		return e.Reason
	}
	if t := e.AsTask(); t != nil {
		return t.Reason
	}
	if i := e.AsInstance(); i != nil && string(i.State) == e.Verb() { // otherwise it is the reason of a later state
		return i.Reason
	}
	return ""
}

// knownReason replaces a reason that was printed before.
const knownReason = "\x00"

// withoutKnownReason removes the reason of an event if it was printed before for the same
// object.
func (n *narrator) withoutKnownReason(e client.Event, about string) client.Event {
	switch e.Subject() {
	case "task", "instance":
		why := n.reasonOf(e)
		if why != "" && n.why[about] == why {
			e.Reason = knownReason
		}
		n.why[about] = why
	}
	return e
}

// stamp formats the time of an event, with the date unless it is today.
func (n *narrator) stamp(at time.Time) string {
	here := n.now()
	if there := at.In(here.Location()); !at.IsZero() && there.Format(time.DateOnly) != here.Format(time.DateOnly) {
		return there.Format(time.DateTime)
	}
	return clockOf(n.now, at)
}

func (n *narrator) sentenceOf(e client.Event) string {
	if max(len(n.names), len(n.said), len(n.why)) > maxNames {
		clear(n.names)
		clear(n.said)
		clear(n.why)
	}
	n.rememberName(e.Project, e.ProjectName)
	e.ProjectName = cmp.Or(e.ProjectName, n.names[e.Project])
	switch e.Subject() {
	case "instance":
		return n.instance(e)
	case "task":
		return n.task(e)
	case "project":
		return n.project(e)
	case "version":
		return n.version(e)
	case "volume":
		return n.volume(e)
	case "network":
		return n.network(e)
	case "node":
		return n.node(e)
	case "service":
		return n.service(e)
	case "nodes":
		return nodes(e)
	case "settings":
		return "the settings of the installation were " + e.Verb() + prefixed(" by ", e.Actor) + bracketed(e.Reason)
	case "user", "organization", "package", "token", "key":
		return common(e)
	}
	return strings.TrimSpace(cmp.Or(e.ProjectName, shortHash(e.Project)) + " " + e.Kind + bracketed(e.Reason))
}

// verbs describe instance events, with a placeholder for the name of the node.
var verbs = map[string]string{
	"pending":      "is waiting for a node",
	"provisioning": "is being created on %s",
	"running":      "is running on %s",
	"healthy":      "is healthy on %s",
	"unhealthy":    "is unhealthy on %s",
	"degraded":     "has members that are down",
	"recovered":    "has no members that are down",
	"draining":     "is draining on %s",
	"stopping":     "is stopping on %s",
	"stopped":      "has stopped on %s",
	"failed":       "failed on %s",
	"unknown":      "is unknown on %s",
	"destroyed":    "was removed from %s",
	"collected":    "was cleaned up",
	"updating":     "is being updated in place on %s",
	"debt":         "is left on %s",
	"forgotten":    "was removed with its node",
	"crash":        "will crash on %s",
	"starting":     "is being started on %s",
	"restarting":   "is being restarted on %s",
	"kept":         "has ended and is kept on %s",
}

func (n *narrator) instance(e client.Event) string {
	n.rememberName(e.Node, e.NodeName)
	name, reason := cmp.Or(e.InstanceName, n.names[e.Instance], shortHash(e.Instance)), e.Reason
	if i := e.AsInstance(); i != nil {
		name = cmp.Or(i.Name, name)
		if string(i.State) == e.Verb() { // otherwise it is the reason of a later state
			reason = cmp.Or(reason, i.Reason)
		}
		n.rememberName(i.Node, i.NodeName)
	}
	n.rememberName(e.Instance, name)
	if e.Verb() == "collected" || e.Verb() == "forgotten" {
		delete(n.names, e.Instance)
	}
	return owned(e) + name + " " + n.withNode(cmp.Or(verbs[e.Verb()], e.Verb()), e.Node) + bracketed(reason)
}

// volume describes a volume event: hello/db.1:data was created on node1.
func (n *narrator) volume(e client.Event) string {
	name := "a volume"
	if v := e.AsVolume(); v != nil {
		name = slotted(*v)
		n.rememberName(v.Node, v.NodeName)
	}
	what := map[string]string{
		"created": "is being created on %s", "made": "was created on %s", "pending": "cannot be created on %s", "left": "now belongs to the organization", "deleting": "is being deleted on %s", "deleted": "was deleted",
	}[e.Verb()]
	return owned(e) + name + " " + n.withNode(cmp.Or(what, "is "+e.Verb()), e.Node) + bracketed(e.Reason)
}

// network describes a network event: hello/backend was created on node1.
func (n *narrator) network(e client.Event) string {
	name := "a network"
	if v := e.AsNetwork(); v != nil {
		name = v.Name
		for _, part := range v.Nodes {
			n.rememberName(part.Node, part.NodeName)
		}
	}
	what := map[string]string{
		"created": "was created", "joined": "is used by one more project", "left": "is used by one fewer project", "deleted": "was deleted", "pending": "cannot be created on %s",
		"attaching": "is being created on %s", "attached": "was created on %s", "detaching": "is being removed from %s", "detached": "was removed from %s",
	}[e.Verb()]
	return owned(e) + name + " " + n.withNode(cmp.Or(what, "is "+e.Verb()), e.Node) + bracketed(e.Reason)
}

func (n *narrator) rememberName(id, name string) {
	if id != "" && name != "" {
		n.names[id] = name
	}
}

// withNode inserts the node into a verb that has a placeholder for it.
func (n *narrator) withNode(verb, node string) string {
	before, _, wanted := strings.Cut(verb, " %s")
	if !wanted {
		return verb
	}
	if node == "" {
		return strings.TrimSuffix(strings.TrimSuffix(before, " on"), " from")
	}
	return before + " " + n.nodeName(node)
}

func (n *narrator) nodeName(id string) string { return cmp.Or(n.names[id], shortHash(id)) }

func (n *narrator) task(e client.Event) string {
	t := e.AsTask()
	if t == nil {
		t = &contract.Task{ID: e.Task, Task: "task"}
	}
	t.ProjectName = cmp.Or(t.ProjectName, e.ProjectName, shortHash(e.Project))
	switch e.Verb() {
	case "progress":
		return fmt.Sprintf("%s: %d of %d done", describeTask(t), t.Progress.Done, t.Progress.Total) + bracketed(cmp.Or(e.Reason, t.Reason))
	case "completed", "failed", "terminated":
		return fmt.Sprintf("%s %s", describeTask(t), map[string]string{"completed": "completed", "failed": "failed", "terminated": "was terminated"}[e.Verb()]) +
			prefixed(" in ", took(t)) + bracketed(cmp.Or(e.Reason, t.Reason))
	}
	return fmt.Sprintf("%s is %s", describeTask(t), e.Verb()) + bracketed(cmp.Or(e.Reason, t.Reason))
}

func (n *narrator) project(e client.Event) string {
	name := cmp.Or(e.ProjectName, shortHash(e.Project))
	switch verb := e.Verb(); verb {
	case "created", "updated", "renamed":
		return name + " was " + verb + prefixed(" by ", e.Actor) + bracketed(e.Reason)
	case "failed":
		return name + " failed" + bracketed(e.Reason)
	case "deleting":
		return name + " is being deleted" + prefixed(" by ", e.Actor) + bracketed(e.Reason)
	case "deleted":
		return name + " was deleted" + bracketed(e.Reason)
	default:
		return name + " is " + statusWords(verb) + bracketed(e.Reason)
	}
}

// service describes an event of a service: hello/web is converging.
func (n *narrator) service(e client.Event) string {
	name := cmp.Or(e.ProjectName, shortHash(e.Project)) + "/" + e.ServiceName
	switch verb := e.Verb(); verb {
	case "removed":
		return name + " was removed" + bracketed(e.Reason)
	case "failed":
		return name + " failed" + bracketed(e.Reason)
	default:
		return name + " is " + statusWords(verb) + bracketed(e.Reason)
	}
}

// statusWords returns a status as part of a sentence.
func statusWords(status string) string { return strings.ReplaceAll(status, "-", " ") }

func (n *narrator) version(e client.Event) string {
	name := "a version"
	if v := e.AsVersion(); v != nil && v.Number > 0 {
		name = fmt.Sprintf("version %d", v.Number)
		if e.Verb() == "created" && e.Reason == "" {
			e.Reason = v.Message
		}
		if e.Reason == name {
			e.Reason = ""
		}
	}
	what := map[string]string{"created": "was submitted", "completed": "is rolled out completely", "deleted": "was deleted", "withdrawn": "is no longer approved", "forgotten": "is no longer kept"}[e.Verb()]
	by := ""
	switch e.Verb() {
	case "created", "approved", "withdrawn":
		by = prefixed(" by ", e.Actor)
	}
	return name + " of " + cmp.Or(e.ProjectName, shortHash(e.Project)) + " " + cmp.Or(what, "is "+e.Verb()) + by + bracketed(e.Reason)
}

func (n *narrator) node(e client.Event) string {
	n.rememberName(e.Node, e.NodeName)
	if node := e.AsNode(); node != nil {
		n.rememberName(node.ID, node.Name)
	}
	what := map[string]string{"unknown": "is unknown", "quarantine": "has instances in quarantine", "facts": "reported changed facts of its machine", "lost": "was disconnected", "restored": "can connect again", "purged": "is clearing its quarantine", "deleted": "was removed", "expired": "is no longer pending", "given_up": "is given up", "drain_stopped": "has stopped draining", "key_requested": "is asked for a new key", "key_rotated": "has a new key", "copy_refused": "was copied"}[e.Verb()]
	if e.ReasonCode == mariposa.ReasonQuarantineOver {
		what, e.Reason = "has nothing in quarantine any more", ""
	}
	return "node " + n.nodeName(e.Node) + " " + cmp.Or(what, "is "+e.Verb()) + bracketed(e.Reason)
}

// nodes describes an event about many nodes: rescheduling stopped (3 of 5 nodes are lost).
func nodes(e client.Event) string {
	what := map[string]string{"storm_began": "rescheduling stopped", "storm_ended": "rescheduling continues"}[e.Verb()]
	return cmp.Or(what, "nodes: "+e.Verb()) + bracketed(e.Reason)
}

// common describes an event without a project: organization acme was updated by ann.
func common(e client.Event) string {
	var named struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(e.Object, &named) != nil || named.Name == "" { // it may be deleted
		return withArticle(e.Subject()) + " was " + e.Verb() + prefixed(" by ", e.Actor) + bracketed(e.Reason)
	}
	return e.Subject() + " " + named.Name + " was " + e.Verb() + prefixed(" by ", e.Actor) + bracketed(e.Reason)
}

// withArticle returns a noun with its indefinite article: a member, an owner.
func withArticle(noun string) string {
	if strings.ContainsAny(noun[:min(1, len(noun))], "aeio") { // not u: a user
		return "an " + noun
	}
	return "a " + noun
}

// owned returns the project's name as a prefix for the name of its object.
func owned(e client.Event) string {
	if e.ProjectName == "" {
		return ""
	}
	return e.ProjectName + "/"
}

func bracketed(s string) string {
	if s == "" || s == knownReason {
		return ""
	}
	return " (" + s + ")"
}
