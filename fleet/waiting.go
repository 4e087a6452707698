package fleet

import (
	"sync"
	"time"
)

// Whoever has a key or a join token can open connections. Until one has a session, it may
// not take long, send much (wire.MaxHello), or be one of many.
const (
	helloTimeout = 10 * time.Second
	// maxWaitingOfNode is how many connections with the key of one node may be without a
	// session. An agent needs one; a few more are left over from connections that broke.
	maxWaitingOfNode = 4
	// maxWaitingOfToken is the same for a join token, with which many nodes may join at once.
	maxWaitingOfToken = 256
)

// waitingGate counts the connections that have no session yet, by what admitted them.
type waitingGate struct {
	mu sync.Mutex
	by map[string]int
}

// EnterWaiting counts one more connection of an agent that has no session yet; false if what
// admitted it has too many. Serve is called with the admission that it returns. Leave must
// be called when the connection ends.
func (f *Fleet) EnterWaiting(by Admission) (counted Admission, leave func(), ok bool) {
	who, most := "node "+by.Node, maxWaitingOfNode
	switch {
	case by.Own:
		return by, func() {}, true
	case by.Node == "" && by.Token != nil:
		who, most = "token "+by.Token.ID, maxWaitingOfToken
	}
	g := &f.waiting
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.by[who] >= most {
		return by, nil, false
	}
	if g.by == nil {
		g.by = map[string]int{}
	}
	g.by[who]++
	by.leave = sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.by[who]--; g.by[who] == 0 {
			delete(g.by, who)
		}
	})
	return by, by.leave, true
}
