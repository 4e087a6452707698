package agent

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"mariposa"
)

// board is what instances can read of their values over HTTP. The node's loop
// writes on it, requests read from it. A nil board is one that nobody can see.
type board struct {
	url string
	key []byte

	mu      sync.Mutex
	notices map[string]notice            // by instance
	holders map[[sha256.Size]byte]string // instances by a hash of their token: a lookup must not tell by its time how much of a guess is right
}

// notice is the values of one instance. It is never changed, only replaced.
type notice struct {
	number   int64
	values   []mariposa.Variable
	replaced chan struct{} // closed when there is a newer one, or none any more
}

func newBoard(address, key string) *board {
	if address == "" {
		return nil
	}
	return &board{
		url: "http://" + address + mdataPath, key: []byte(key),
		notices: map[string]notice{}, holders: map[[sha256.Size]byte]string{},
	}
}

// token is what an instance shows to read its values. It follows from the node's
// own secret, so it holds for the life of the instance and is kept nowhere.
func (b *board) token(id string) string {
	mac := hmac.New(sha256.New, b.key)
	mac.Write([]byte(id)) // never fails
	return hex.EncodeToString(mac.Sum(nil))
}

// post puts up the values of an instance.
func (b *board) post(id string, number int64, values []mariposa.Variable) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old, known := b.notices[id]
	if known {
		close(old.replaced)
	} else {
		b.holders[sha256.Sum256([]byte(b.token(id)))] = id
	}
	b.notices[id] = notice{number: number, values: values, replaced: make(chan struct{})}
}

// drop takes down what stands of an instance that is no more.
func (b *board) drop(id string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, known := b.notices[id]; known {
		close(old.replaced)
		delete(b.notices, id)
		delete(b.holders, sha256.Sum256([]byte(b.token(id))))
	}
}

// read finds what the holder of a token may see.
func (b *board) read(token string) (notice, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, known := b.holders[sha256.Sum256([]byte(token))]
	return b.notices[id], known
}
