package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// Box seals and opens the data of one owner. It is safe for concurrent use.
type Box struct {
	aead   cipher.AEAD
	digest []byte // the key for digests
}

// errSealedOtherwise is the only error for bytes that do not open: nothing more is
// known about them.
var errSealedOtherwise = errors.New("the data is damaged, or was sealed with another key or for another place")

// format is the first byte of all sealed data.
const format = 1

func newBox(inner []byte) *Box {
	return &Box{aead: gcm(derive(inner, "seal")), digest: derive(inner, "digest")}
}

// Seal encrypts bytes. They open only with the same associated data, which says where
// they belong and is not encrypted.
func (b *Box) Seal(plain, ad []byte) []byte { return sealWith(b.aead, plain, ad) }

// Open decrypts sealed bytes.
func (b *Box) Open(sealed, ad []byte) ([]byte, error) { return openWith(b.aead, sealed, ad) }

// MAC returns a digest of parts that only the owner's key can make: 16 bytes in hex.
// The same parts always give the same digest for one owner.
func (b *Box) MAC(parts ...string) string {
	h := hmac.New(sha256.New, b.digest)
	h.Write(lengthPrefixed(parts...))
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Format keeps the keys out of printed output.
func (b *Box) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "box") }

func sealWith(aead cipher.AEAD, plain, ad []byte) []byte {
	sealed := make([]byte, 1, 1+len(plain)+aead.Overhead())
	sealed[0] = format
	return aead.Seal(sealed, nil, plain, ad)
}

func openWith(aead cipher.AEAD, sealed, ad []byte) ([]byte, error) {
	if len(sealed) < 1+aead.Overhead() || sealed[0] != format {
		return nil, errSealedOtherwise
	}
	plain, err := aead.Open(nil, nil, sealed[1:], ad)
	if err != nil {
		return nil, errSealedOtherwise
	}
	return plain, nil
}

// derive derives a key for one use from a key.
func derive(key []byte, use string) []byte {
	derived, err := hkdf.Key(sha256.New, key, nil, "mariposa 1 "+use, keySize)
	if err != nil {
		panic("seal: HKDF refuses a key of 32 bytes: " + err.Error())
	}
	return derived
}

// gcm returns a cipher that chooses a random nonce for each message.
func gcm(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic("seal: AES refuses a key of 32 bytes: " + err.Error())
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic("seal: GCM refuses AES: " + err.Error())
	}
	return aead
}

// lengthPrefixed joins parts so that different lists never give the same bytes.
func lengthPrefixed(parts ...string) []byte {
	var b []byte
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return b
}
