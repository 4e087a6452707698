package mariposa

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// TokenSpec is a secret that grants access. The store keeps its hash, never the secret.
// It grants the permissions of its user, within its bounds.
type TokenSpec struct {
	Use          TokenUse  `json:"use"`
	Hash         string    `json:"hash"`
	Name         string    `json:"name,omitempty"`
	User         string    `json:"user,omitempty"`         // its owner
	Organization string    `json:"organization,omitempty"` // only in this one
	Project      string    `json:"project,omitempty"`      // only in this one
	Role         Role      `json:"role,omitempty"`         // at most this role
	Parent       string    `json:"parent,omitempty"`       // the token that created it: it is revoked with that one
	Uses         int       `json:"uses,omitempty"`         // how many nodes it lets join; 0: any number
	Joined       int       `json:"joined,omitempty"`       // how many nodes it has let join
	Expires      time.Time `json:"expires,omitzero"`
	Created      time.Time `json:"created"`
	Author       string    `json:"author,omitempty"`
	Revoked      time.Time `json:"revoked,omitzero"` // it is archived then, and grants no access
	Proved       time.Time `json:"proved,omitzero"`  // of a session: when the person last proved who they are
}

// Owner returns the user who owns the token. Join tokens have no owner: installation
// admins manage them.
func (t *TokenSpec) Owner() string {
	if t.Use == TokenAdmin {
		return FirstUser
	}
	return t.User
}

// Expired reports whether a token has expired.
func (t *TokenSpec) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// Spent reports whether a token has admitted as many nodes as it may.
func (t *TokenSpec) Spent() bool { return t.Uses > 0 && t.Joined >= t.Uses }

// The default and the maximum lifetime of join tokens, and how long a join token of an
// earlier release, which had no expiry, still works after the upgrade.
const (
	JoinLifetime       = 24 * time.Hour
	JoinUses           = 10
	MaxJoinLifetime    = 365 * 24 * time.Hour
	MaxJoinUses        = 1_000_000
	LegacyJoinLifetime = 7 * 24 * time.Hour
)

// TokenStatus says when a token was last used, to the minute or so.
type TokenStatus struct {
	Used time.Time `json:"used,omitzero"`
	From string    `json:"from,omitempty"`
}

// TokenUse says what a token is for.
type TokenUse string

const (
	TokenAdmin TokenUse = "admin" // everything, as the first user
	TokenUser  TokenUse = "user"  // the permissions of its user
	TokenJoin  TokenUse = "join"  // a node may connect
	// TokenLink signs a person in to the web page, once: it becomes a session.
	TokenLink TokenUse = "link"
	// TokenSession is a person who is signed in to the web page. Only a browser's cookie
	// contains the secret.
	TokenSession TokenUse = "session"
)

// Authenticates reports whether a token authenticates its user. The others grant one thing only.
func (u TokenUse) Authenticates() bool { return u != TokenJoin && u != TokenLink }

// Lifetimes of sessions and of links that begin one.
const (
	SessionLifetime = 7 * 24 * time.Hour
	LinkLifetime    = 10 * time.Minute
	MaxLinkLifetime = 24 * time.Hour
)

// ProofLifetime is how long a person at the web page may do sensitive things after they have proved
// who they are.
const ProofLifetime = 10 * time.Minute

// HashToken returns what is stored of a token. Tokens are long and random, so a
// plain hash cannot be reversed by guessing.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// TokenID returns the id of the token with a hash, so that a token is found
// without a search.
func TokenID(hash string) string { return uuid.NewSHA1(uuid.Nil, []byte("token "+hash)).String() }

// ParseJoinExpiry parses the expiry of a join token: JoinLifetime by default, and
// MaxJoinLifetime at most.
func ParseJoinExpiry(text string, now time.Time) (time.Time, error) {
	at, err := ParseExpiry(cmp.Or(text, JoinLifetime.String()), now)
	if err == nil && at.After(now.Add(MaxJoinLifetime)) {
		return at, Errorf(InvalidArgument, "expires: a join token can be valid for at most %d days, not until %s", int(MaxJoinLifetime.Hours()/24), at.UTC().Format(time.DateOnly))
	}
	return at, err
}

// ParseExpiry parses the expiry of a token: a time, or a duration such as 12h or 90d. An
// empty text means that it never expires.
func ParseExpiry(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		span, bad := time.ParseDuration(text)
		if days, ok := strings.CutSuffix(text, "d"); ok {
			n, err := strconv.Atoi(days)
			span, bad = time.Duration(n)*24*time.Hour, err
			if n > 36500 {
				bad = strconv.ErrRange
			}
		}
		if bad != nil {
			return at, Errorf(InvalidArgument, "invalid expires %q: use a time such as 2027-01-31T00:00:00Z or a duration such as 12h or 90d", shortText(text))
		}
		at = now.Add(span)
	}
	if !at.After(now) {
		return at, Errorf(InvalidArgument, "expires: %s is not in the future", shortText(text))
	}
	return at, nil
}
