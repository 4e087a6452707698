package main_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"mariposa"
	"mariposa/contract"
)

// send sends a request to one replica and returns the status and body of the answer; 0:
// there is no answer.
func (c *cluster) send(replica int, token, method, path string, body any) (int, []byte) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, nil
	}
	if text, ok := body.(string); ok {
		b = []byte(text)
	}
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.replicas[replica%len(c.replicas)].url+path, bytes.NewReader(b))
	if err != nil {
		return 0, nil
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	if _, ok := body.(string); ok {
		req.Header.Set("Content-Type", "application/yaml")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	got, _ := io.ReadAll(res.Body)
	return res.StatusCode, got
}

// race sends n requests at once, to the replicas in turn, and counts the answers by
// status.
func (c *cluster) race(n int, ask func(i int) (status int, body []byte)) map[int]int {
	var all sync.WaitGroup
	var mu sync.Mutex
	count := map[int]int{}
	for i := range n {
		all.Go(func() {
			status, _ := ask(i)
			mu.Lock()
			defer mu.Unlock()
			count[status]++
		})
	}
	all.Wait()
	return count
}

func (c *cluster) newToken(ask contract.NewToken) contract.Token {
	c.t.Helper()
	var made contract.Token
	status, body := c.send(0, c.admin, "POST", "/v1/tokens", ask)
	if status != http.StatusCreated {
		c.t.Fatalf("no token: %d %s", status, body)
	}
	must(c.t, json.Unmarshal(body, &made))
	return made
}

// Concurrent requests to two replicas cannot exceed a limit, and can use it fully.
func TestLimitsHoldAgainstRequestsToTwoReplicasAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.must(c.CreateUser(t.Context(), contract.NewUser{Name: "bob"}))
	bob := c.newToken(contract.NewToken{Name: "bob", User: "bob"}).Secret
	c.await("the other replica knows bob", func() bool { status, _ := c.send(1, bob, "GET", "/v1/user", nil); return status == 200 })
	const at = 50
	if status, body := c.send(0, c.admin, "PUT", "/v1/settings", map[string]any{"organizations_per_user": 3}); status != 200 {
		t.Fatalf("settings: %d %s", status, body)
	}
	c.await("the other replica knows the settings", func() bool {
		_, body := c.send(1, c.admin, "GET", "/v1/settings", nil)
		return bytes.Contains(body, []byte(`"organizations_per_user":3`))
	})
	got := c.race(at, func(i int) (int, []byte) {
		return c.send(i, bob, "POST", "/v1/organizations", map[string]any{"name": fmt.Sprintf("org-%d", i)})
	})
	if got[201] != 3 {
		t.Errorf("organizations: %v", got)
	}
	if status, body := c.send(0, c.admin, "PUT", "/v1/organizations/bob/quota", map[string]any{"projects": 5, "instances": 12}); status != 200 {
		t.Fatalf("quota: %d %s", status, body)
	}
	c.await("the other replica knows the quota", func() bool {
		_, body := c.send(1, c.admin, "GET", "/v1/organizations/bob/quota", nil)
		return bytes.Contains(body, []byte(`"projects":5`))
	})
	got = c.race(at, func(i int) (int, []byte) {
		return c.send(i, bob, "POST", fmt.Sprintf("/v1/projects?name=p%d", i), "services: {d: {compute_type: dummy}}\n")
	})
	if got[201] != 5 {
		t.Errorf("projects: %v", got)
	}
	var list contract.Projects
	_, body := c.send(0, bob, "GET", "/v1/projects", nil)
	must(t, json.Unmarshal(body, &list))
	got = c.race(at, func(i int) (int, []byte) {
		return c.send(i, bob, "PUT", "/v1/projects/"+list.Projects[i%5].ID+"/services/d/state", map[string]any{"action": "scale", "scale": 2 + i/5})
	})
	var quota contract.Quota
	_, body = c.send(0, bob, "GET", "/v1/organizations/bob/quota", nil)
	must(t, json.Unmarshal(body, &quota))
	if quota.Used.Instances > 12 || quota.Used.Projects != 5 || got[202] == 0 {
		t.Errorf("scaling: %v, used: %+v", got, quota.Used)
	}
}

// While a token creates tokens at one replica, it is revoked at the other. None of the
// tokens that it created works afterwards.
func TestNothingMadeByARevokedTokenWorksAtAnyReplica(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	total := 0
	for round := range rounds {
		maker := c.newToken(contract.NewToken{Name: fmt.Sprintf("maker-%d", round)})
		c.await("the other replica knows it", func() bool { status, _ := c.send(1, maker.Secret, "GET", "/v1/user", nil); return status == 200 })
		var mu sync.Mutex
		var made []contract.Token
		c.race(7, func(i int) (int, []byte) {
			if i == 3 {
				return c.send(1, c.admin, "DELETE", "/v1/tokens/"+maker.ID+"?cascade=true", nil)
			}
			var last int
			for n := 0; ; n++ {
				status, body := c.send(0, maker.Secret, "POST", "/v1/tokens", contract.NewToken{Name: fmt.Sprintf("made-%d-%d-%d", round, i, n)})
				if last = status; status != http.StatusCreated {
					return last, nil
				}
				var one contract.Token
				if json.Unmarshal(body, &one) == nil {
					mu.Lock()
					made = append(made, one)
					mu.Unlock()
				}
			}
		})
		total += len(made)
		for replica := range 2 {
			c.await("the maker to end", func() bool { status, _ := c.send(replica, maker.Secret, "GET", "/v1/user", nil); return status != 200 })
			for _, one := range made {
				if status, body := c.send(replica, one.Secret, "GET", "/v1/user", nil); status == 0 || status == 200 {
					t.Errorf("round %d, replica %d: token %s answers %d %s", round, replica, one.Name, status, body)
				}
			}
		}
	}
	if total == 0 {
		t.Error("no token was made in time: nothing was tried")
	}
}

// rounds is the number of runs of a race.
const rounds = 10

// If many nodes join at once with one join token at two replicas, exactly the allowed
// number of them succeeds.
func TestAJoinTokenLetsExactlyItsNumberOfNodesIn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	want := 0
	for i, uses := range []int{1, 5} {
		join := c.newToken(contract.NewToken{Name: fmt.Sprintf("join-%d", i), Use: mariposa.TokenJoin, Uses: &uses})
		for part := range 3 {
			name := fmt.Sprintf("dummies-%d-%d", i, part)
			c.spawnProcess(&lockedBuffer{}, []string{"MARIPOSA_JOIN=" + join.Secret}, "agent", "--server", c.urls(), "--data", filepath.Join(c.dir, name), "--name", name, "--dummy-nodes", "10")
		}
		want += uses
		count := func() int {
			all, err := c.Nodes(t.Context())
			must(t, err)
			return len(all.Nodes)
		}
		c.await("as many nodes as the token is for", func() bool { return count() >= want })
		c.await("the token to be spent", func() bool {
			_, body := c.send(0, c.admin, "GET", "/v1/tokens/"+join.ID, nil)
			return bytes.Contains(body, fmt.Appendf(nil, `"joined":%d`, uses))
		})
		if n := count(); n != want {
			t.Errorf("%d nodes joined, want %d", n, want)
		}
	}
}
