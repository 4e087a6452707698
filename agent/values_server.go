package agent

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"mariposa"
)

// valuesServer lets instances read their values over HTTP. The node's loop writes to it,
// requests read from it. A nil server serves nothing.
type valuesServer struct {
	url string
	key []byte

	mu               sync.Mutex
	published        map[string]publishedValues   // by instance
	instancesByToken map[[sha256.Size]byte]string // instances by a hash of their token, so that the time of a lookup does not reveal how much of a guess is right
	waiting          map[string]int               // requests that wait for changes, by the token of their instance
}

// publishedValues are the values of one instance. They are never changed, only replaced.
type publishedValues struct {
	number     int64
	values     []mariposa.Variable
	superseded chan struct{} // closed when they are replaced or removed
}

func newValuesServer(address, key string) *valuesServer {
	if address == "" {
		return nil
	}
	return &valuesServer{
		url: "http://" + address + mdataPath, key: []byte(key),
		published: map[string]publishedValues{}, instancesByToken: map[[sha256.Size]byte]string{}, waiting: map[string]int{},
	}
}

// token returns the token with which an instance reads its values. It is derived from
// the node's secret, so it is valid for the life of the instance and stored nowhere.
func (b *valuesServer) token(id string) string {
	mac := hmac.New(sha256.New, b.key)
	mac.Write([]byte(id)) // never fails
	return hex.EncodeToString(mac.Sum(nil))
}

// publish makes the values of an instance readable.
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

// remove removes the values of an instance that is gone.
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

// find returns the values that the holder of a token may read.
func (b *valuesServer) find(token string) (publishedValues, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, known := b.instancesByToken[sha256.Sum256([]byte(token))]
	return b.published[id], known
}
