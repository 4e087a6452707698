package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mariposa"
	"mariposa/client"
	"mariposa/contract"
	"mariposa/store/postgres/pgtest"
)

// A change that is requested twice with the same idempotency key is made once, whatever
// happens in between.

// reply is the answer to a change.
type reply struct {
	status   int
	body     string
	replayed bool
}

// send requests a change with an idempotency key. Status 0 means that there was no
// answer.
func (h *devServer) send(ctx context.Context, method, path, kind, body, key string) (r reply) {
	res, err := h.request(ctx, method, path, body, http.Header{"Idempotency-Key": {key}, "Content-Type": {kind}})
	if err != nil {
		return reply{body: err.Error()}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return reply{body: err.Error()}
	}
	return reply{res.StatusCode, string(b), res.Header.Get("Idempotency-Replayed") == "true"}
}

const dummies = "services: {d: {compute_type: dummy}}"

func TestAnAnswerIsGivenAgainAfterKill9(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	create := func(key, body string) reply {
		return h.send(t.Context(), http.MethodPost, "/v1/projects?name="+key, "application/yaml", body, key)
	}
	first := create("one", dummies)
	h.kill() // right after the answer
	if first.status != http.StatusCreated || first.replayed {
		t.Fatalf("%+v", first)
	}
	h.start()
	second := create("one", dummies)
	if second.status != first.status || !bytes.Equal(compact(t, first.body), compact(t, second.body)) || !second.replayed {
		t.Errorf("asked again: %+v, then %+v", first, second)
	}
	if other := create("one", dummies+" "); other.status != http.StatusConflict || !strings.Contains(other.body, "Idempotency-Key") {
		t.Errorf("another change with the same key: %+v", other)
	}
	refused := create("three", "services: [")
	mended := create("three", dummies)
	if refused.status != http.StatusBadRequest || mended.status != http.StatusCreated || mended.replayed {
		t.Errorf("what was refused can be mended with the same key: %+v, then %+v", refused, mended)
	}
	all, err := h.Projects(t.Context(), "")
	if err != nil || len(all.Projects) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
}

func compact(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return b.Bytes()
}

// TestEveryChangeIsMadeOnceThoughTheServerDies repeats a request until it is answered,
// while the server is killed at random times.
func TestEveryChangeIsMadeOnceThoughTheServerDies(t *testing.T) {
	t.Parallel()
	h := newDevServer(t)
	h.create("counts", "services: {d: {compute_type: dummy}}\nmetadata: {n: {type: integer, default: 0}}")
	rng := rand.New(rand.NewPCG(5, 6))
	const rounds = 8
	answered := 0
	for round := range rounds {
		type change struct{ method, path, kind, body string }
		changes := []change{
			{http.MethodPost, fmt.Sprintf("/v1/projects?name=p%d", round), "application/yaml", dummies},
			{http.MethodPost, "/v1/projects/counts/metadata/n/incr?by=7", "", ""},
			{http.MethodPost, "/v1/instances", "application/json", `{"project": "counts", "compute_type": "dummy"}`},
			{http.MethodPost, "/v1/tokens", "application/json", fmt.Sprintf(`{"name": "t%d"}`, round)},
		}
		replies := make([]reply, len(changes))
		ask := func(ctx context.Context, i int) reply {
			c := changes[i]
			return h.send(ctx, c.method, c.path, c.kind, c.body, fmt.Sprintf("%d/%d", round, i))
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range changes {
			all.Go(func() { replies[i] = ask(ctx, i) })
		}
		time.Sleep(time.Duration(rng.IntN(40000)) * time.Microsecond) // kill at a random time
		h.kill()
		cancel()
		all.Wait()
		h.start()
		for i := range changes {
			var r reply
			h.await("there is an answer", func() bool {
				r = ask(t.Context(), i)
				return r.status != 0 && r.status != http.StatusConflict || r.replayed
			})
			if r.status/100 != 2 || (replies[i].status/100 == 2 && (!r.replayed || !bytes.Equal(compact(t, r.body), compact(t, replies[i].body)))) {
				t.Errorf("%s: first %+v, then %+v", changes[i].path, replies[i], r)
			}
			if again := ask(t.Context(), i); !again.replayed || again.status != r.status || !bytes.Equal(compact(t, r.body), compact(t, again.body)) {
				t.Errorf("%s: %+v, then %+v", changes[i].path, r, again)
			}
			if replies[i].status/100 == 2 {
				answered++
			}
		}
	}
	t.Logf("%d of %d changes were answered before the server died", answered, rounds*4)
	n, err := h.MetadataKey(t.Context(), "counts", "n", false)
	if err != nil || n.Value != fmt.Sprint(7*rounds) {
		t.Errorf("%d times 7 is %+v, %v", rounds, n, err)
	}
	projects, err := h.Projects(t.Context(), "")
	if err != nil || len(projects.Projects) != rounds+1 {
		t.Errorf("%d projects, not %d, %v", len(projects.Projects), rounds+1, err)
	}
	singles := 0
	for _, i := range h.instances("counts") {
		if !i.Managed {
			singles++
		}
	}
	if singles != rounds {
		t.Errorf("%d single instances, not %d", singles, rounds)
	}
	tokens, err := h.Tokens(t.Context(), "")
	must(t, err)
	made := slices.DeleteFunc(tokens.Tokens, func(k contract.Token) bool { return k.Use == mariposa.TokenLink }) // each start prints one
	if len(made) != 1+rounds {                                                                                   // one is the admin's own token
		t.Errorf("%d tokens, not %d", len(made), 1+rounds)
	}
}

func TestReplicasStartTogetherOnAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	c := &cluster{devServer: &devServer{t: t, dir: t.TempDir(), out: &lockedBuffer{}}, store: pgtest.Start(t)}
	c.addReplicas(3)
	c.admin = c.token()
	for i := range c.replicas {
		c.ask(i)
		c.await("the token is known everywhere", func() bool { _, err := c.Whoami(t.Context()); return err == nil })
		who, err := c.Whoami(t.Context())
		if err != nil || who.Name != "admin" || who.ID != mariposa.FirstUser || !who.Admin || who.Token.Name == "" {
			t.Errorf("the token's user: %+v, %v", who, err)
		}
		users, err := c.Users(t.Context())
		if err != nil || len(users.Users) != 1 {
			t.Errorf("users: %+v, %v", users, err)
		}
		orgs, err := c.Organizations(t.Context())
		if err != nil || len(orgs.Organizations) != 1 || orgs.Organizations[0].Name != "admin" {
			t.Errorf("organizations: %+v, %v", orgs, err)
		}
	}

	// The same change, requested from all replicas at once.
	replies := make([]reply, len(c.replicas))
	var all sync.WaitGroup
	for i := range c.replicas {
		c.ask(i)
		h := *c.devServer
		all.Go(func() {
			for deadline := time.Now().Add(limit); ; {
				replies[i] = h.send(t.Context(), http.MethodPost, "/v1/projects?name=shop", "application/yaml", dummies, "one key")
				if replies[i].status != http.StatusConflict && replies[i].status != http.StatusServiceUnavailable || time.Now().After(deadline) {
					return
				}
			}
		})
	}
	all.Wait()
	made := 0
	for i, r := range replies {
		if r.status != http.StatusCreated || !bytes.Equal(compact(t, r.body), compact(t, replies[0].body)) {
			t.Errorf("replica %d answers %+v, the first %+v", i, r, replies[0])
		}
		if !r.replayed {
			made++
		}
	}
	if made != 1 {
		t.Errorf("it was made %d times", made)
	}

	// A token that is revoked at one replica is invalid at all of them.
	c.ask(0)
	robot, err := c.CreateToken(t.Context(), contract.NewToken{Name: "robot"})
	must(t, err)
	asRobot := func(i int) error {
		r, err := client.New(client.Options{URL: c.replicas[i].url, Token: robot.Secret})
		if err != nil {
			return err
		}
		_, err = r.Projects(t.Context(), "")
		return err
	}
	for i := range c.replicas {
		c.await("the robot is let in everywhere", func() bool { return asRobot(i) == nil })
	}
	c.must(c.RevokeToken(t.Context(), robot.ID, false))
	for i := range c.replicas {
		c.await("the robot is let in nowhere", func() bool { return mariposa.CodeOf(asRobot(i)) == mariposa.Unauthorized })
	}
}
