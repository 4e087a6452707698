package reason

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"mariposa"
)

var update = flag.Bool("update", false, "write the golden files anew")

var (
	ten     = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)
	lostOne = mariposa.Reason{Subject: "web.1-a", Node: "n1", Other: "shop", Since: ten, Until: ten.Add(time.Minute)}
	kept    = mariposa.Reason{Subject: "web.1", Other: "data", Node: "n1", IDs: []string{"v1", "v2"}, Keys: []string{"data", "logs"}}
)

// examples are one reason or more for every code.
var examples = map[mariposa.ReasonCode][]mariposa.Reason{
	mariposa.ReasonVersionLost:     {{Version: 3}},
	mariposa.ReasonNodeAway:        {lostOne, {Subject: "web.1-a", Node: "n1", Other: "shop", Since: ten, Until: ten.Add(time.Minute), More: 12}},
	mariposa.ReasonNodeAwayNever:   {lostOne},
	mariposa.ReasonNodeAwayVolumes: {{Subject: "web.1-a", Node: "n1", Since: ten, Keys: []string{"data"}}, {Subject: "web.1-a", Node: "n1", Since: ten, Keys: []string{"data", "logs"}}},
	mariposa.ReasonStranded:        {lostOne},
	mariposa.ReasonSlotBusy:        {{Subject: "web.3"}},
	mariposa.ReasonWaitsMissing:    {{Subject: "db"}},
	mariposa.ReasonWaitsStopped:    {{Subject: "db"}},
	mariposa.ReasonWaitsInstances:  {{Subject: "db", Of: 1}, {Subject: "db", Of: 1, Frozen: true}, {Subject: "db", Of: 1, Cause: failure, More: 2}, {Subject: "db", Of: 1, Detail: "healthy"}},
	mariposa.ReasonWaitsRollout:    {{Subject: "db"}, {Subject: "db", Cause: &mariposa.Reason{Code: mariposa.ReasonIsPaused}}},
	mariposa.ReasonWaitsHeld:       {{Subject: "db"}},
	mariposa.ReasonWaitsScale:      {{Subject: "db"}},
	mariposa.ReasonWaitsRest:       {{Subject: "db"}},
	mariposa.ReasonWaitsField:      {{Subject: "db", Other: "db.1-a", Detail: "address"}},
	mariposa.ReasonWaitsReference:  {{Subject: "db", Other: "db.1-a"}},
	mariposa.ReasonFollows:         {{Subject: "db", Other: "db.1-a"}},
	mariposa.ReasonReferenceGone:   {{Subject: "db", Other: "db.1-a"}},
	mariposa.ReasonProves:          {{Subject: "db.1-b", Other: "db.1-a", For: 5 * time.Second}},
	mariposa.ReasonReferrers:       {{Subject: "db.1-a", Other: "web"}, {Subject: "db.1-a", Other: "web", Cause: &mariposa.Reason{Code: mariposa.ReasonIsFollowing}}},
	mariposa.ReasonGoesAfter:       {{Subject: "web", Count: 2}, {Subject: "web", Count: 2, Frozen: true}},
	mariposa.ReasonBackingOff:      {{Count: 3, Until: ten, Cause: failure}, {Count: 1, Until: ten, Service: "web"}},
	mariposa.ReasonPaused:          {{Version: 2, Count: 1, Of: 3}},
	mariposa.ReasonHeld:            {{Version: 2, Count: 1, Of: 3}},
	mariposa.ReasonWaitsApproval:   {{Version: 7, Keys: []string{"db-password"}}, {Version: 8, Keys: []string{"db-password", "pin"}}},
	mariposa.ReasonNeedsMetadata:   {{Keys: []string{"mode"}}, {Keys: []string{"mode", "pin"}, Secrets: []string{"pin"}}, {Keys: []string{"a", "b", "c", "d", "e"}}, {Keys: []string{"a", "b", "c"}, Secrets: []string{"b"}}, {Keys: []string{"a", "b", "c"}, Secrets: []string{"a", "b", "c"}}},
	mariposa.ReasonStartFailures:   {{Version: 1, Count: 3, Cause: failure}, {Service: "web", Version: 1, Count: 3, RolledBackTo: mariposa.NoVersion, Cause: failure}},
	mariposa.ReasonStartDeadline:   {{Version: 1, For: 10 * time.Minute}},
	mariposa.ReasonStoppedFailures: {{Version: 2, Count: 3, Cause: failure}, {Service: "web", Version: 2, Count: 3, RolledBackTo: 1, Cause: failure}, {Version: 2, Count: 3, RolledBackTo: mariposa.NoVersion}},
	mariposa.ReasonStoppedDeadline: {{Version: 2, For: 10 * time.Minute}, {Version: 2, For: 10 * time.Minute, Cause: &mariposa.Reason{Code: mariposa.ReasonNoNodes}}},
	mariposa.ReasonNotFollowed:     {{Version: 2, Subject: "web"}},
	mariposa.ReasonFailure:         {*failure, {}},
	mariposa.ReasonIsWaiting:       {{Subject: "db"}},
	mariposa.ReasonFrozen: {
		{},
		{Tally: map[string]int{mariposa.TallyRunning: 1, mariposa.TallyStopping: 2}},
		{Keys: []string{"db"}, Tally: map[string]int{mariposa.TallyFailed: 1, mariposa.TallyUnknown: 2, mariposa.TallyMissing: 1, mariposa.TallySurplus: 2, mariposa.TallyOutdated: 3}},
	},

	mariposa.ReasonScale:             {{Count: 3}},
	mariposa.ReasonUnhealthy:         {{Subject: "web.1-a", Detail: "http :8080/health answered 503, 3 times in 15 s"}},
	mariposa.ReasonUnhealthyRecheck:  {{Subject: "web.1-a", Detail: "http :8080/health answered 503, 3 times in 15 s"}},
	mariposa.ReasonUnhealthyTurn:     {{Subject: "web.1-a", Detail: "http :8080/health answered 503, 3 times in 15 s"}},
	mariposa.ReasonCheckNeverPassed:  {{Subject: "web.1-a", Detail: "http :8080/helth answered 404, 3 times in 2 s"}},
	mariposa.ReasonReplacesUnhealthy: {{Subject: "web.1-a", Detail: "tcp :80 refused the connection"}},
	mariposa.ReasonReplacesFailed:    {{Subject: "web.1-a", Detail: "exited with 1"}, {Subject: "web.1-a"}},
	mariposa.ReasonReplacesLost:      {lostOne},
	mariposa.ReasonVersionReplaces:   {{Version: 2, Subject: "web.1-a"}, {Version: 2}},
	mariposa.ReasonFollowReplaces:    {{Subject: "web.1-a", Other: "db"}, {Other: "db"}},
	mariposa.ReasonInPlace:           {{Version: 2}},
	mariposa.ReasonSlotHeld:          {{Subject: "web.3"}},

	mariposa.ReasonNoNode: {
		{Detail: "docker", Of: 3, Tally: map[string]int{"is full": 2, "is drained": 1}},
		{Detail: "docker", Of: 1, Tally: map[string]int{"has port 80 taken": 1}, Cause: &mariposa.Reason{Code: mariposa.ReasonPortsHeld}},
	},
	mariposa.ReasonNodeRefuses:    {{Node: "n1", Detail: "is full"}},
	mariposa.ReasonVolumeNodeGone: {kept},
	mariposa.ReasonVolumeNodeAway: {{Subject: "web.1", Other: "data", Node: "n1", Since: ten}, {Subject: "web.1", Other: "data", Node: "n1", Detail: "is not connected"}},
	mariposa.ReasonVolumeDrained:  {kept},
	mariposa.ReasonVolumeNoRoom:   {{Subject: "web.1", Other: "data", Node: "n1", Detail: "is full"}},
	mariposa.ReasonVolumeCompute:  {{Subject: "web.1", Other: "data", Detail: "dummy", IDs: []string{"v1"}}},
	mariposa.ReasonVolumesApart:   {{Subject: "web.1", Keys: []string{"data", "logs"}, Node: "n1", Other: "n2", IDs: []string{"v1", "v2"}}},
	mariposa.ReasonPlanRepeats:    {{For: 4 * time.Second}},
	mariposa.ReasonNoFallback:     {{Version: 1, Cause: failure.About("web")}},
	mariposa.ReasonCounts: {
		{Count: 1, Of: 1, Tally: map[string]int{mariposa.TallyUnproven: 1}, Subject: "web.1-a", Detail: "waiting for its first check", Node: "n1"},
		{Of: 2},
		{Count: 3, Of: 2, For: 30 * time.Second, Tally: map[string]int{mariposa.TallyOutdated: 2, mariposa.TallyYoung: 1}},
		{Count: 1, Of: 3, Subject: "web.2-b", Detail: "provisioning", Node: "n1", Tally: map[string]int{mariposa.TallyStarting: 1, mariposa.TallyStopping: 1, mariposa.TallyFailed: 1, mariposa.TallyUnknown: 1}},
	},
	mariposa.ReasonOutdated:       {{Subject: "web", Count: 2, Version: 1, Of: 3}, {Subject: "web", Count: 1, Version: 1, Of: 3}},
	mariposa.ReasonOutdatedValues: {{Subject: "web", Count: 1, Version: 1, Keys: []string{"mode"}}, {Subject: "web", Count: 2, Version: 1}},
	mariposa.ReasonLingers:        {{Subject: "web.1-a"}},
	mariposa.ReasonThawEnds:       {{}, {Keys: []string{"web", "db"}}},

	mariposa.ReasonAsked:          {{Detail: "ann scaled web to 2"}},
	mariposa.ReasonClears:         {{Subject: "web.1-a"}},
	mariposa.ReasonTargetLost:     {{Version: 3}},
	mariposa.ReasonTakenOver:      {{Subject: "t1"}},
	mariposa.ReasonEndedBy:        {{Subject: "t1"}},
	mariposa.ReasonStillFrozen:    {{Keys: []string{"db"}}, {Keys: []string{"api", "db"}, MoreServices: 3}},
	mariposa.ReasonTerminated:     {{Subject: "t1"}},
	mariposa.ReasonTerminatedBy:   {{Subject: "ann"}},
	mariposa.ReasonNoProgress:     {{Since: ten, Cause: failure.About("web")}},
	mariposa.ReasonRollbackFailed: {{Version: 2, RolledBackTo: 1, Cause: failure.About("web")}, {Version: 1, RolledBackTo: mariposa.NoVersion}},
	mariposa.ReasonAwaitTask:      {{Subject: "t1"}},
	mariposa.ReasonAwaitOrStop:    {{Subject: "t1"}, {Subject: "t1", Frozen: true}, {Subject: "t1", Frozen: true, Cause: (&mariposa.Reason{Code: mariposa.ReasonNodeAway, Subject: "web.1-a", Node: "n1", Other: "shop", Since: ten, Until: ten.Add(time.Minute)}).About("web")}},

	mariposa.ReasonReported:       {{Detail: "exited with code 1"}},
	mariposa.ReasonUnreachable:    {{Node: "n1"}},
	mariposa.ReasonNotSeen:        {{Since: ten}},
	mariposa.ReasonReboots:        {{Since: ten}},
	mariposa.ReasonCopyRefused:    {{Subject: "10.0.0.9"}},
	mariposa.ReasonQuarantine:     {{Count: 1}, {Count: 2}},
	mariposa.ReasonQuarantineOver: {{}},
	mariposa.ReasonMadeFor:        {{Subject: "web.1-a"}},
	mariposa.ReasonVolumeReturned: {{Subject: "db.1", Other: "data"}},
	mariposa.ReasonNetworkUsed:    {{Subject: "web", Other: "shop"}},
	mariposa.ReasonRehomed:        {{Subject: "acme"}},
	mariposa.ReasonAwaitsApproval: {{Subject: "n1"}},
	mariposa.ReasonNameTaken:      {{Subject: "n1", IDs: []string{"old-id", "new-id"}}},
	mariposa.ReasonApproved:       {{Subject: "ann"}},
	mariposa.ReasonRejected:       {{Subject: "ann"}},
	mariposa.ReasonPendingExpired: {{Since: ten}},
	mariposa.ReasonReportCut:      {{Keys: []string{"its drivers", "the reason of an instance"}}},
	mariposa.ReasonKeyRotated:     {{Subject: "SHA256:abc"}},
	mariposa.ReasonNetworkLeft:    {{Subject: "shop"}},

	mariposa.ReasonStorm:          {{Subject: "web.1-a", Node: "n1", Other: "shop", Count: 5, Of: 12, Since: ten}, {Subject: "web.1-a", Node: "n1", Count: 5, Of: 12, Since: ten}},
	mariposa.ReasonStormSlow:      {lostOne},
	mariposa.ReasonDrainRollout:   {{Subject: "web.1-a", Node: "n1", Version: 2}},
	mariposa.ReasonDrains:         {{Subject: "web.1-a", Node: "n1"}, {Node: "n1"}},
	mariposa.ReasonUnstable:       {{Count: 4, Until: ten}},
	mariposa.ReasonReserved:       {{Subject: "ann", Node: "n1"}},
	mariposa.ReasonDrainLeft:      {{Count: 2, Of: 7, Node: "n1", Cause: &mariposa.Reason{Code: mariposa.ReasonDrainVolumes, Subject: "web.1-a", Keys: []string{"data"}}}, {Count: 1, Of: 7, Node: "n1"}, {Count: 1, Of: 1, Node: "n1", Cause: &mariposa.Reason{Code: mariposa.ReasonNoNodes}}},
	mariposa.ReasonDrainStopped:   {{Subject: "ann", Count: 2, Node: "n1"}},
	mariposa.ReasonDrainDeadline:  {{Count: 1, Node: "n1", Cause: &mariposa.Reason{Code: mariposa.ReasonDrainVolumes, Subject: "web.1-a", Keys: []string{"data"}}}},
	mariposa.ReasonDrainDone:      {{Subject: "ann", Node: "n1"}},
	mariposa.ReasonDrainVolumes:   {{Subject: "web.1-a", Keys: []string{"data", "logs"}, Other: "shop", IDs: []string{"web"}}, {Subject: "web.1-a", Keys: []string{"data", "logs"}}},
	mariposa.ReasonDrainUnmanaged: {{Subject: "web-1", Other: "shop", Node: "n1"}, {Subject: "web-1"}},
	mariposa.ReasonDrainFrozen:    {{Subject: "web.1-a", Keys: []string{"web"}, Other: "shop"}},
	mariposa.ReasonDrainPaused:    {{Subject: "web.1-a", Keys: []string{"web"}, Other: "shop"}},
	mariposa.ReasonDrainService: {
		{Subject: "web.1-a", Other: "shop", Node: "n1", Cause: &mariposa.Reason{Code: mariposa.ReasonNoNode, Detail: "docker", Of: 2, Tally: map[string]int{"is full": 2}}},
		{Subject: "web.1-a", Other: "shop", Node: "n1", Cause: &mariposa.Reason{Code: mariposa.ReasonBackingOff, Count: 3, Until: ten}},
		{Subject: "web.1-a", Other: "shop", Node: "n1", Cause: &mariposa.Reason{Code: mariposa.ReasonNodeAway, Subject: "web.1-a", Node: "n2", Other: "shop", Since: ten, Until: ten.Add(time.Minute)}},
	},
	mariposa.ReasonDrainAway:     {{Node: "n1", Since: ten}},
	mariposa.ReasonDrainStopping: {{Subject: "web.1-a"}},
	mariposa.ReasonDrainStarts:   {{Subject: "web.1-a", Other: "web.1-b"}},
	mariposa.ReasonDrainProves:   {{Subject: "web.1-a", Other: "web.1-b", Since: ten}},
	mariposa.ReasonDrainLost:     {{Subject: "web.1-a", Other: "web.1-b", Node: "n2", Since: ten}},
	mariposa.ReasonDrainTurn:     {{Subject: "web.1-a", Keys: []string{"web"}, Count: 1}, {Subject: "web.1-a", Keys: []string{"web"}, Count: 2, More: 3}},
	mariposa.ReasonDrainMissing:  {{Subject: "web.1-a", Keys: []string{"web"}, Count: 2, Of: 3}},
	mariposa.ReasonDrainDown: {
		{Subject: "web.1-a", Keys: []string{"web"}, Count: 2, Of: 3, Node: "n3", Since: ten, IDs: []string{"n3"}, Tally: map[string]int{mariposa.TallyLimit: 1}},
		{Subject: "web.1-a", Keys: []string{"web"}, Count: 2, Of: 3, Node: "n3", Since: ten, Tally: map[string]int{mariposa.TallyLimit: 1}, More: 2},
		{Subject: "web.1-a", Keys: []string{"web"}, Count: 2, Of: 3},
	},
	mariposa.ReasonDrainGone:      {{Subject: "ann", Node: "n1"}},
	mariposa.ReasonDrainUndone:    {{Subject: "ann", Node: "n1"}},
	mariposa.ReasonStormBegan:     {{Count: 5, Of: 12, Since: ten}},
	mariposa.ReasonStormLasts:     {{Count: 5, Of: 12, Since: ten, Tally: map[string]int{mariposa.TallyWaiting: 7}}, {Count: 5, Of: 12, Since: ten, Tally: map[string]int{mariposa.TallyWaiting: 1}}, {Count: 5, Of: 12, Since: ten}},
	mariposa.ReasonStormEnded:     {{}, {Count: 1}, {Count: 2}},
	mariposa.ReasonRescheduledNow: {{Subject: "ann"}},
}

var failure = &mariposa.Reason{Code: mariposa.ReasonFailure, Subject: "web.1-a", Detail: "exited with 1"}

// codes reads the codes out of the source of the nouns.
func codes(t testing.TB) []mariposa.ReasonCode {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []mariposa.ReasonCode
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if kind, ok := v.Type.(*ast.Ident); ok && kind.Name == "ReasonCode" {
				text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, mariposa.ReasonCode(text))
			}
		}
		return true
	})
	if len(all) < 50 {
		t.Fatalf("found %d codes", len(all))
	}
	return all
}

func TestEveryCodeHasASentence(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	known := codes(t)
	for i, code := range known {
		if slices.Contains(known[:i], code) {
			t.Errorf("%s stands for two reasons", code)
		}
		if _, ok := table[code]; !ok {
			t.Errorf("%s has no sentence", code)
		}
		cases := examples[code]
		if cases == nil { // it needs nothing
			cases = []mariposa.Reason{{}}
		}
		said := ""
		for _, r := range cases {
			r.Code = code
			said += Sentence(&r)
			fmt.Fprintf(&b, "%s: %s\n", code, Sentence(&r))
		}
		if said == "" {
			t.Errorf("%s says nothing", code)
		}
	}
	for _, code := range Codes() {
		if !slices.Contains(known, code) {
			t.Errorf("%s is no code", code)
		}
	}
	const path = "testdata/sentences.golden"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil { //nolint:gosec // it goes into the repository
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, got := strings.Split(string(golden), "\n"), strings.Split(b.String(), "\n")
	for i := range max(len(want), len(got)) {
		if i >= len(want) || i >= len(got) || want[i] != got[i] {
			t.Fatalf("line %d is another than in %s; if that is wanted, run this test with -update\ngot:\n%s", i+1, path, b.String())
		}
	}
}

// The table in the documents has every code with an example.
func TestTheDocumentsListEveryCode(t *testing.T) {
	t.Parallel()
	const path, begin, end = "../docs/api.md", "`go test ./reason -update` -->\n", "<!-- end of reasons -->"
	var b strings.Builder
	b.WriteString("| code | a sentence |\n|---|---|\n")
	for _, code := range codes(t) {
		r := mariposa.Reason{}
		if all := examples[code]; all != nil {
			r = all[slices.IndexFunc(all, func(r mariposa.Reason) bool { r.Code = code; return Sentence(&r) != "" })]
		}
		r.Code = code
		fmt.Fprintf(&b, "| `%s` | %s |\n", code, Sentence(&r))
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	table, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the table", path)
	}
	if table == b.String() {
		return
	}
	if !*update {
		t.Fatalf("%s lists other reasons; run this test with -update", path)
	}
	if err := os.WriteFile(path, []byte(before+begin+b.String()+end+after), 0o644); err != nil { //nolint:gosec // it goes into the repository
		t.Fatal(err)
	}
}

func TestASentenceIsTrueWhenItIsRead(t *testing.T) {
	t.Parallel()
	backing := (&mariposa.Reason{Code: mariposa.ReasonBackingOff, Count: 3, Until: ten}).Because(failure).About("web")
	lost := &mariposa.Reason{Code: mariposa.ReasonStranded, Subject: "web.1-a", Node: "n1", Since: ten}
	for _, c := range []struct {
		name string
		r    *mariposa.Reason
		now  time.Time
		want string
	}{
		{"a try that is to come", backing, ten.Add(-time.Second), "web: failed 3 times in a row; next retry at 10:00:00 UTC: web.1-a exited with 1"},
		{"a try that is due", backing, ten, "web: failed 3 times in a row; retrying now: web.1-a exited with 1"},
		{"a try in a reader's zone", backing, ten.Add(-time.Second).In(time.FixedZone("east", 3600)), "web: failed 3 times in a row; next retry at 10:00:00 UTC: web.1-a exited with 1"},
		{"the same day", lost, ten.Add(time.Hour), "web.1-a is on node n1, which has been unknown since 10:00:00 UTC; it is removed when the node returns"},
		{"another day", lost, ten.AddDate(0, 0, 2), "web.1-a is on node n1, which has been unknown since 2026-03-01 10:00:00 UTC; it is removed when the node returns"},
		{"none", nil, ten, ""},
		{"somebody's words", mariposa.TextReason("it rains"), ten, "it rains"},
		{"a command comes last", (&mariposa.Reason{Code: mariposa.ReasonStorm, Subject: "web.1-a", Node: "n1", Other: "shop", Count: 5, Of: 12, Since: ten}).AndMore(2), ten, "web.1-a is on node n1, which was lost together with others (5 of 12 nodes with instances have been lost since 10:00:00 UTC); it is not replaced until they return (and 2 more instances); to replace them now, run `mariposa project converge shop --reschedule-now`"},
		{"that of the cause comes first", (&mariposa.Reason{Code: mariposa.ReasonDrainDeadline, Count: 1, Node: "n1"}).Because(&mariposa.Reason{Code: mariposa.ReasonDrainFrozen, Subject: "web.1-a", Keys: []string{"web"}, Other: "shop"}), ten, "the drain was not complete at its deadline: 1 instance is left on node n1: web.1-a stays, because web of shop is frozen; thaw it with `mariposa project thaw shop --service web`; then continue with `mariposa node drain n1`"},
		{"words that many have", mariposa.TextReason("it rains").AndMore(2), ten, "it rains (and 2 more instances)"},
		{"words that many services have", mariposa.TextReason("it rains").About("web").AndMoreServices(1), ten, "web: it rains (and 1 more service)"},
		{"words that many instances and services have", mariposa.TextReason("it rains").AndMore(1).About("web").AndMoreServices(2), ten, "web: it rains (and 1 more instance, and 2 more services)"},
		{"a code of a newer release", &mariposa.Reason{Code: "moonstruck", Subject: "web"}, ten, "moonstruck"},
		{"one with words", &mariposa.Reason{Code: "moonstruck", Detail: "the moon is full"}, ten, "the moon is full"},
		{"one with a cause", (&mariposa.Reason{Code: "moonstruck"}).Because(failure), ten, "moonstruck: web.1-a exited with 1"},
		{"the cause of a code that is not known", failureOf("moonstruck"), ten, "failed; retrying now: moonstruck"},
		{"nothing at all", &mariposa.Reason{}, ten, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := At(c.r, c.now); got != c.want {
				t.Errorf("says %q, want %q", got, c.want)
			}
			if c.r == backing && !Timed(c.r) || c.r == nil && Timed(c.r) {
				t.Errorf("depends on the time: %v", Timed(c.r))
			}
		})
	}
}

func failureOf(code mariposa.ReasonCode) *mariposa.Reason {
	return (&mariposa.Reason{Code: mariposa.ReasonBackingOff, Count: 1, Until: ten}).Because(&mariposa.Reason{Code: code})
}

// anyReason is one of any code, with every field set or not, and bounded names.
func anyReason(known []mariposa.ReasonCode) *rapid.Generator[*mariposa.Reason] {
	name := rapid.StringOfN(rapid.RuneFrom([]rune("abc.-ü ")), 0, 30, -1)
	return rapid.Custom(func(t *rapid.T) *mariposa.Reason {
		number := rapid.IntRange(0, 100_000)
		r := &mariposa.Reason{
			Code: rapid.SampledFrom(known).Draw(t, "code"), Service: name.Draw(t, "service"), Subject: name.Draw(t, "subject"),
			Other: name.Draw(t, "other"), Node: name.Draw(t, "node"), Version: number.Draw(t, "version"), RolledBackTo: rapid.IntRange(-1, 9).Draw(t, "back"),
			Count: number.Draw(t, "count"), Of: number.Draw(t, "of"), For: time.Duration(rapid.Int64().Draw(t, "for")),
			Frozen: rapid.Bool().Draw(t, "frozen"), Keys: rapid.SliceOfN(name, 0, 40).Draw(t, "keys"), IDs: rapid.SliceOfN(name, 0, 3).Draw(t, "ids"),
			Tally:  rapid.MapOfN(rapid.StringOfN(rapid.Rune(), 0, 400, -1), number, 0, 9).Draw(t, "tally"),
			Detail: rapid.StringOfN(rapid.Rune(), 0, 1000, -1).Draw(t, "detail"), More: number.Draw(t, "more"), MoreServices: number.Draw(t, "services"),
		}
		if rapid.Bool().Draw(t, "times") {
			r.Since, r.Until = ten, ten.Add(r.For)
		}
		return r
	})
}

// However reasons are put together, one stays flat, and its sentence short.
func TestReasonsNeverNestOrGrow(t *testing.T) {
	t.Parallel()
	known := slices.DeleteFunc(codes(t), func(c mariposa.ReasonCode) bool {
		return c == mariposa.ReasonAsked || c == mariposa.ReasonReported // whole sentences of others
	})
	any := anyReason(known)
	rapid.Check(t, func(t *rapid.T) {
		r := any.Draw(t, "first")
		for i := range rapid.IntRange(1, 12).Draw(t, "steps") {
			before := *r
			switch rapid.IntRange(0, 4).Draw(t, "how") {
			case 0:
				r = any.Draw(t, "outer").Because(r)
			case 1:
				r = r.Because(any.Draw(t, "cause").Because(r))
			case 2:
				r = r.AndMore(i)
			case 3:
				r = r.About("web")
			default:
				r = any.Draw(t, "outer").Because(r.Root())
			}
			if before.Cause != nil && before.Cause.Cause != nil || r.Cause != nil && r.Cause.Cause != nil {
				t.Fatalf("it nests: %+v", r)
			}
		}
		for _, now := range []time.Time{{}, ten, ten.AddDate(1, 0, 0)} {
			if said := At(r, now); utf8.RuneCountInString(said) > longest {
				t.Fatalf("it takes %d characters to say: %s", utf8.RuneCountInString(said), said)
			}
		}
	})
}

// longest is how long a sentence may become with names of up to 30 characters, of which what
// counts more instances and services takes 55.
const longest = 640

// A sentence may end with a command: it is never cut, also as the cause of another.
func TestACauseKeepsItsCommand(t *testing.T) {
	t.Parallel()
	storm := &mariposa.Reason{Code: mariposa.ReasonStorm, Subject: strings.Repeat("web", 20) + ".1-a", Node: "a-node-with-a-long-name", Other: "shop", Count: 5, Of: 12, Since: ten}
	left := (&mariposa.Reason{Code: mariposa.ReasonDrainLeft, Count: 2, Of: 7, Node: "n1"}).Because(storm)
	if said := Sentence(left); !strings.HasSuffix(said, "run `mariposa project converge shop --reschedule-now`") {
		t.Errorf("it says %q", said)
	}
	left = left.Because(mariposa.Reported(strings.Repeat("x", 500)))
	if said := Sentence(left); len(said) > 300 {
		t.Errorf("text from elsewhere has %d bytes", len(said))
	}
}

// Who may not run a command is told whom to ask.
func TestAMemberIsToldWhomToAsk(t *testing.T) {
	t.Parallel()
	away := &mariposa.Reason{Code: mariposa.ReasonNodeAway, Subject: "web.1-a", Node: "n1", Other: "shop", Since: ten, Until: ten.Add(time.Minute)}
	const command = " `mariposa project converge shop --reschedule-now`"
	for r, asks := range map[*mariposa.Reason]string{
		away:            "to replace it now, ask an operator to run" + command,
		away.AndMore(2): "to replace them now, ask an operator to run" + command,
		(&mariposa.Reason{Code: mariposa.ReasonWaitsInstances, Subject: "db", Of: 1}).Because(away): "ask an operator to run" + command,
	} {
		if said := ForMember(r, ten); !strings.HasSuffix(said, asks) {
			t.Errorf("a member reads %q", said)
		}
		if said := At(r, ten); !strings.HasSuffix(said, "now, run"+command) {
			t.Errorf("an operator reads %q", said)
		}
	}
}

// A command can be told from the sentence around it.
func TestCommandsAreQuoted(t *testing.T) {
	t.Parallel()
	for _, code := range codes(t) {
		for _, r := range append(examples[code], mariposa.Reason{}) {
			r.Code = code
			said := Sentence(&r)
			if bare := strings.Count(said, "mariposa ") - strings.Count(said, "`mariposa "); bare != 0 || strings.Count(said, "`")%2 != 0 {
				t.Errorf("%s: a command is not quoted in %q", code, said)
			}
		}
	}
}
