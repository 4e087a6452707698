package assembly

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mariposa/agent"
)

// renew writes a certificate with a number and its key into a folder.
func renew(t *testing.T, dir string, number int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(number), NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "cert.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
	put(t, filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	at := time.Unix(1_000_000*number, 0) // clocks of file systems are coarse
	if err := os.Chtimes(filepath.Join(dir, "cert.pem"), at, at); err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestACertificateIsReadAgainWhenItChangesAndCanBeRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	renew(t, dir, 1)
	c, err := newCertificate(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	served := func() int64 {
		t.Helper()
		c.looked = c.looked.Add(-2 * reloadInterval)
		cert, err := x509.ParseCertificate(c.leaf())
		if err != nil {
			t.Fatal(err)
		}
		return cert.SerialNumber.Int64()
	}
	if n := served(); n != 1 {
		t.Errorf("it serves %d", n)
	}
	put(t, filepath.Join(dir, "cert.pem"), []byte("no certificate"))
	if n := served(); n != 1 {
		t.Errorf("with a new one that is broken it serves %d", n)
	}
	renew(t, dir, 2)
	if n := served(); n != 2 {
		t.Errorf("with a new one it serves %d", n)
	}
	for _, name := range []string{"cert.pem", "key.pem"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if n := served(); n != 2 {
		t.Errorf("with the files gone it serves %d", n)
	}
}

func TestPlainHTTPIsForThisMachineAlone(t *testing.T) {
	t.Parallel()
	for address, alone := range map[string]bool{
		"127.0.0.1:8080": true, "127.9.9.9:1": true, "[::1]:8080": true, "localhost:8080": true,
		":8080": false, "0.0.0.0:8080": false, "[::]:8080": false, "10.0.0.1:8080": false, "example.com:80": false, "localhost.example.com:80": false, "8080": false, "": false,
	} {
		cert, err := loadCertificate(Config{Listen: address})
		if cert != nil || (err == nil) != alone {
			t.Errorf("%s: %v", address, err)
		}
		if err != nil && !strings.Contains(err.Error(), "--tls-cert") {
			t.Errorf("%s: it does not say what to do: %v", address, err)
		}
		if _, err := loadCertificate(Config{Listen: address, Insecure: true}); err != nil {
			t.Errorf("%s, and somebody insists: %v", address, err)
		}
	}
}

func TestANodeKeepsWhoItIsAndWhereItsInstancesRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, id, err := loadIdentity(NodeConfig{Dir: dir, Name: "a"})
	address := id.Mdata
	if err != nil || first.Node == "" || first.Key == "" || !strings.HasPrefix(address, "127.0.0.1:") {
		t.Fatalf("%+v, %q, %v", first, address, err)
	}
	again, same, err := loadIdentity(NodeConfig{Dir: dir, Name: "a"})
	if err != nil || again.Node != first.Node || again.Key != first.Key || same != id {
		t.Errorf("the second time: %+v, %+v, %v", again, same, err)
	}
	older := t.TempDir()
	put(t, filepath.Join(older, "node.json"), []byte(`{"id": "n1", "key": "k1"}`))
	for range 2 {
		h, id, err := loadIdentity(NodeConfig{Dir: older})
		if err != nil || h.Node != "n1" || h.Key != "k1" || id.Mdata == "" {
			t.Errorf("from before there was an address: %+v, %+v, %v", h, id, err)
		}
	}
	if _, id, err := loadIdentity(NodeConfig{Dir: t.TempDir(), Dummy: true}); err != nil || id.Mdata != "" {
		t.Errorf("a dummy has %q, %v", id.Mdata, err)
	}
	put(t, filepath.Join(older, "node.json"), []byte("{}"))
	if _, _, err := loadIdentity(NodeConfig{Dir: older}); err == nil || !strings.Contains(err.Error(), "node.json") {
		t.Errorf("a damaged one: %v", err)
	}
}

// A copied or moved data directory is refused, unless somebody says that it was moved.
func TestACopyOfAnIdentityIsRefused(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	first, _, err := loadIdentity(NodeConfig{Dir: dir, Name: "a"})
	if err != nil || first.Home == "" {
		t.Fatal(first, err)
	}
	b, err := os.ReadFile(identityFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	put(t, identityFile(other), b)
	if _, _, err := loadIdentity(NodeConfig{Dir: other, Name: "a"}); err == nil || !strings.Contains(err.Error(), "copied or moved") {
		t.Errorf("a copy: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if h, _, err := loadIdentity(NodeConfig{Dir: link, Name: "a"}); err != nil || h.Home != first.Home {
		t.Errorf("by another name: %v", err)
	}
	moved, id, err := loadIdentity(NodeConfig{Dir: other, Name: "a", Moved: true})
	if err != nil || moved.Node != first.Node || moved.Home == first.Home {
		t.Errorf("moved: %+v, %v", moved, err)
	}
	if _, _, err := loadIdentity(NodeConfig{Dir: other, Name: "a"}); err == nil {
		t.Error("it was not admitted, but need not say any more that it was moved")
	}
	id.storeHome(identityFile(other))
	if again, _, err := loadIdentity(NodeConfig{Dir: other, Name: "a"}); err != nil || again.Home != moved.Home {
		t.Errorf("the next time: %v", err)
	}
}

// Running instances read their values with tokens that are derived from the node's first
// key.
func TestNewKeysOfANodeAreStoredWithTheSecretOfItsInstances(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, id, err := loadIdentity(NodeConfig{Dir: dir, Name: "a"})
	if err != nil || id.ValuesKey != "" {
		t.Fatal(id, err)
	}
	for _, keys := range []agent.Keys{{Current: "second", Former: first.Key}, {Current: "third", Former: "second"}} {
		if err := id.storeKeys(identityFile(dir), keys); err != nil {
			t.Fatal(err)
		}
		h, now, err := loadIdentity(NodeConfig{Dir: dir, Name: "a"})
		if err != nil || h.Node != first.Node || h.Key != keys.Current || h.FormerKey != keys.Former || now.ValuesKey != first.Key || now.Mdata != id.Mdata {
			t.Errorf("stored %+v, %v", now, err)
		}
	}
	if err := id.storeKeys(filepath.Join(dir, "no", "such"), agent.Keys{Current: "fourth"}); err == nil || id.Key != "third" {
		t.Errorf("what could not be stored is used: %+v, %v", id, err)
	}
}
