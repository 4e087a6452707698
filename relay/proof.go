package relay

import (
	"crypto/rand"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// Path is the path on which a replica accepts others.
	Path = "/v1/replica"
	// Scheme is the authorization scheme with which a replica proves itself to another.
	Scheme = "Mariposa-Replica"
	// AnswerHeader is the header with which the other proves itself in turn.
	AnswerHeader = "Mariposa-Replica"

	useAsk    = "replica link"
	useAnswer = "replica link answer"

	// proofLifetime is how far the time of a proof may be from now, by the store's clock.
	proofLifetime = 30 * time.Second
)

// Peer is a replica that has proved itself.
type Peer struct {
	Name  string
	nonce string
}

var errProof = errors.New("the credentials are not valid for this replica")

// newProof returns the credentials for one connection to another replica: both names, the
// time and a nonce, signed with the keys of the installation.
func (l *Links) newProof(to string) (credentials, nonce string) {
	nonce = rand.Text()
	at := strconv.FormatInt(l.Clock.Now().UnixMilli(), 10)
	return strings.Join([]string{l.Replica, to, at, nonce, l.Ring.Sign(useAsk, l.Cluster, l.Replica, to, at, nonce)}, " "), nonce
}

// Admit checks the credentials of another replica. They are for this replica alone, and
// can be used once and for a short time.
func (l *Links) Admit(credentials string) (Peer, error) {
	parts := strings.Split(credentials, " ")
	if len(parts) != 5 {
		return Peer{}, errProof
	}
	from, to, at, nonce := parts[0], parts[1], parts[2], parts[3]
	if to != l.Replica || !l.Ring.Verify(parts[4], useAsk, l.Cluster, from, to, at, nonce) {
		return Peer{}, errProof
	}
	ms, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return Peer{}, errProof
	}
	now := l.Clock.Now()
	if now.Sub(time.UnixMilli(ms)).Abs() > proofLifetime || !l.used.take(nonce, now) {
		return Peer{}, errors.New("the credentials of this replica have expired or were used before")
	}
	return Peer{from, nonce}, nil
}

// Answer returns the proof for a replica that was admitted that this is the replica which it
// has asked for.
func (l *Links) Answer(to Peer) string {
	return l.Ring.Sign(useAnswer, l.Cluster, to.Name, l.Replica, to.nonce)
}

func (l *Links) verifyAnswer(answer, from, nonce string) bool {
	return l.Ring.Verify(answer, useAnswer, l.Cluster, l.Replica, from, nonce)
}

// nonces remembers the nonces of valid credentials until those expire.
type nonces struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

// take reports whether a nonce is used for the first time.
func (n *nonces) take(nonce string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for old, at := range n.seen {
		if now.Sub(at) > 2*proofLifetime {
			delete(n.seen, old)
		}
	}
	if _, used := n.seen[nonce]; used {
		return false
	}
	if n.seen == nil {
		n.seen = map[string]time.Time{}
	}
	n.seen[nonce] = now
	return true
}
