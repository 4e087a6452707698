package mariposa_test

import (
	"encoding/json"
	"testing"
	"time"

	"mariposa"
)

// Older releases stored reasons as sentences.
func TestReasonsOfOldStoresAreRead(t *testing.T) {
	t.Parallel()
	var st mariposa.ProjectStatus
	old := `{"goal":"started","reason":"web: it rains","undone_why":"it snowed","services":{"web":{"reason":"it rains","rollout":{"stopped":"the rollout of version 2 stopped after 3 failures"}}}}`
	if err := json.Unmarshal([]byte(old), &st); err != nil {
		t.Fatal(err)
	}
	web := st.Services["web"]
	for got, want := range map[*mariposa.Reason]string{
		st.Reason: "web: it rains", st.RollbackReason: "it snowed", web.Reason: "it rains", web.Rollout.FailureReason: "the rollout of version 2 stopped after 3 failures",
	} {
		if text, only := got.PlainText(); text != want || !only {
			t.Errorf("%+v, want %q", got, want)
		}
	}
	var task mariposa.TaskStatus
	if err := json.Unmarshal([]byte(`{"state":"failed","reason":"why","fault":""}`), &task); err != nil || task.Reason.Detail != "why" {
		t.Errorf("%+v, %v", task, err)
	}
}

func TestReasonsSurviveTheStore(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 10, 0, 0, 1, time.UTC)
	for _, r := range []*mariposa.Reason{
		nil,
		mariposa.TextReason("it rains"),
		mariposa.TextReason("it rains").AndMore(2),
		mariposa.Asked("ann did").About("web").Because(mariposa.Reported("it rains")),
		{
			Code: mariposa.ReasonFrozen, Service: "a", Subject: "b", Other: "c", Node: "d", Version: 1, RolledBackTo: mariposa.NoVersion, Count: 2, Of: 3, Since: at,
			Until: at, For: time.Second, Frozen: true, Keys: []string{"e"}, Secrets: []string{"e"}, IDs: []string{"f"}, Tally: map[string]int{"g": 1}, Detail: "h", More: 4, MoreServices: 5,
			Cause: &mariposa.Reason{Code: mariposa.ReasonIsFrozen},
		},
	} {
		text, err := json.Marshal(mariposa.TaskStatus{Reason: r})
		if err != nil {
			t.Fatal(err)
		}
		var got mariposa.TaskStatus
		if err := json.Unmarshal(text, &got); err != nil || !got.Reason.Equal(r) || !r.Equal(got.Reason) {
			t.Errorf("%s became %+v, %v", text, got.Reason, err)
		}
	}
}

// Equal must compare every field: some reasons are stored only if they differ from
// another one.
func TestReasonsThatDifferInOneFieldAreNotEqual(t *testing.T) {
	t.Parallel()
	zero := &mariposa.Reason{}
	for _, text := range []string{
		`{"code":"a"}`, `{"service":"a"}`, `{"subject":"a"}`, `{"other":"a"}`, `{"node":"a"}`, `{"version":1}`, `{"back":1}`, `{"count":1}`, `{"of":1}`,
		`{"since":"2026-03-01T10:00:00Z"}`, `{"until":"2026-03-01T10:00:00Z"}`, `{"for":1}`, `{"frozen":true}`, `{"keys":["a"]}`, `{"secrets":["a"]}`,
		`{"ids":["a"]}`, `{"tally":{"a":1}}`, `{"detail":"a"}`, `{"more":1}`, `{"cause":{"code":"a"}}`,
	} {
		var r mariposa.Reason
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		if back, err := json.Marshal(&r); err != nil || string(back) != text {
			t.Errorf("%s became %s, %v", text, back, err)
		}
		if r.Equal(zero) || zero.Equal(&r) || r.Equal(nil) || (*mariposa.Reason)(nil).Equal(&r) || !r.Equal(&r) {
			t.Errorf("%s is no difference", text)
		}
	}
}

// Methods return a changed copy, because reasons may be shared.
func TestReasonsAreNotChanged(t *testing.T) {
	t.Parallel()
	cause := mariposa.TextReason("b").Because(mariposa.TextReason("c"))
	r := mariposa.TextReason("a")
	with := r.Because(cause)
	if r.Cause != nil || cause.Cause == nil || with.Cause.Cause != nil || with.Cause.Detail != "b" {
		t.Errorf("%+v because of %+v", r, cause)
	}
	if more := r.AndMore(2); r.More != 0 || more.More != 2 || r.AndMore(0) != r {
		t.Errorf("%+v", r)
	}
	if about := with.About("web"); with.Service != "" || about.Service != "web" || about.Root().Service != "web" || about.Root().Detail != "b" || r.Root() != r {
		t.Errorf("%+v", with)
	}
	var none *mariposa.Reason
	if none.Because(r) != nil || none.AndMore(1) != nil || none.About("web") != nil || none.Root() != nil || none.Is(mariposa.ReasonScale) || r.Because(nil) != r || mariposa.TextReason("") != nil {
		t.Error("nothing became something")
	}
}

// MarshalJSON writes the same bytes as encoding/json would.
func TestReasonsAreWrittenAsTheirFieldsSay(t *testing.T) {
	t.Parallel()
	type fields mariposa.Reason // without its methods
	for _, r := range []mariposa.Reason{
		{},
		{Code: mariposa.ReasonScale, Count: 3},
		{Code: mariposa.ReasonVersionReplaces, Service: "a", Subject: "web.1-a", Other: "b", Node: "n1", Version: 2, RolledBackTo: -1, Count: -3, Of: 4, Detail: "exited with 1", More: 5, MoreServices: 6},
		{Detail: "say \"no\" <b> & ü\n"},
		{Code: mariposa.ReasonWaitsInstances, Subject: "db", Of: 1, Frozen: true, Cause: &mariposa.Reason{Code: mariposa.ReasonFailure}},
		{Code: mariposa.ReasonBackingOff, Until: time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)},
		{Code: mariposa.ReasonFrozen, Tally: map[string]int{"missing": 1}, Keys: []string{"db"}},
	} {
		got, err := json.Marshal(&r)
		want, _ := json.Marshal((*fields)(&r))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
	}
}
