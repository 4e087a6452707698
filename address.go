package mariposa

import (
	"net/netip"
	"net/url"
	"strings"
)

// CheckEncrypted refuses to send secrets in the clear: a plain http address must lead to
// this machine, unless somebody said that it is all right.
func CheckEncrypted(u *url.URL, insecure bool) error {
	if insecure || !strings.EqualFold(u.Scheme, "http") || isLocal(u.Hostname()) {
		return nil
	}
	return Errorf(InvalidArgument, "%s is another machine, and over plain http your token would travel in the clear: use https://, "+
		"or say --insecure (MARIPOSA_INSECURE=1) if something else encrypts the way there", u.Redacted())
}

// isLocal reports whether a host is this machine by its name alone. What a resolver
// says of other names may change, and nothing proves that it is right.
func isLocal(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.Unmap().IsLoopback() || ip.IsUnspecified())
}
