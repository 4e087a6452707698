package agent

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"mariposa"
)

// valuesServer is what instances can read of their values over HTTP. The node's loop
// writes on it, requests read from it. A nil server is one that nobody can read.
type valuesServer struct {
	url string
	key []byte

	mu               sync.Mutex
	published        map[string]publishedValues   // by instance
	instancesByToken map[[sha256.Size]byte]string // instances by a hash of their token: a lookup must not tell by its time how much of a guess is right
}

// publishedValues is the values of one instance. It is never changed, only replaced.
type publishedValues struct {
	number     int64
	values     []mariposa.Variable
	superseded chan struct{} // closed when there is a newer one, or none any more
}

func newValuesServer(address, key string) *valuesServer {
	if address == "" {
		return nil
	}
	return &valuesServer{
		url: "http://" + address + mdataPath, key: []byte(key),
		published: map[string]publishedValues{}, instancesByToken: map[[sha256.Size]byte]string{},
	}
}

// token is what an instance shows to read its values. It follows from the node's
// own secret, so it holds for the life of the instance and is kept nowhere.
func (b *valuesServer) token(id string) string {
	mac := hmac.New(sha256.New, b.key)
	mac.Write([]byte(id)) // never fails
	return hex.EncodeToString(mac.Sum(nil))
}

// publish makes the values readable of an instance.
func (b *valuesServer) publish(id string, number int64, values []mariposa.Variable) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old, known := b.published[id]
	if known {
		close(old.superseded)
	} else {
		b.instancesByToken[sha256.Sum256([]byte(b.token(id)))] = id
	}
	b.published[id] = publishedValues{number: number, values: values, superseded: make(chan struct{})}
}

// remove removes the values of an instance that is no more.
func (b *valuesServer) remove(id string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, known := b.published[id]; known {
		close(old.superseded)
		delete(b.published, id)
		delete(b.instancesByToken, sha256.Sum256([]byte(b.token(id))))
	}
}

// find finds what the holder of a token may see.
func (b *valuesServer) find(token string) (publishedValues, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, known := b.instancesByToken[sha256.Sum256([]byte(token))]
	return b.published[id], known
}
