package mariposa

import (
	"net/netip"
	"net/url"
	"strings"
)

// CheckEncrypted refuses to send secrets unencrypted: a plain http address must be on
// this machine, unless the user allowed it.
func CheckEncrypted(u *url.URL, insecure bool) error {
	if insecure || !strings.EqualFold(u.Scheme, "http") || isLocal(u.Hostname()) {
		return nil
	}
	return Errorf(InvalidArgument, "%s is a remote address, and your token would be sent unencrypted over http: use https://, "+
		"or pass --insecure (MARIPOSA_INSECURE=1) if the connection is encrypted in another way", u.Redacted())
}

// SplitAddress splits an address of an instance into its host and its port, if it has
// one.
func SplitAddress(address string) (host, port string) {
	at := strings.LastIndexByte(address, ':')
	if at > 0 && (strings.IndexByte(address, ':') == at || address[at-1] == ']') {
		return strings.Trim(address[:at], "[]"), address[at+1:]
	}
	return address, ""
}

// isLocal reports whether a host is this machine, judged by its name alone: other names
// depend on a resolver, whose answer can change and is not authenticated.
func isLocal(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.Unmap().IsLoopback() || ip.IsUnspecified())
}
