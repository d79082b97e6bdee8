"""Keys that say themselves whose they are: a prefix that the provider chose, and a body of a known length.

A row is a name, the prefixes, and the body. Prefixes are looked for all at once; only where one is found at the start
of a word is its body compared. Bodies may be longer than documented today, because providers lengthen them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from portico.services.memory.screening.findings import Finding
from portico.services.memory.screening.patterns import pattern
from portico.services.memory.screening.randomness import entropy, stands_for, wordiness

# Bodies
_WORD = r"[0-9A-Za-z]"
_DASHED = r"[0-9A-Za-z_\-]"
_LOW = r"[0-9a-z]"
_HEX = r"[0-9a-fA-F]"
_B64 = r"[0-9A-Za-z+/]"
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"


class Row(NamedTuple):
    name: str
    prefixes: str
    body: str
    confidence: float = 0.97


_ROWS = (
    # Clouds
    Row("aws_access_key", "AKIA ASIA ABIA ACCA", r"[A-Z2-7]{16}(?![0-9A-Za-z])"),
    Row("aws_session_token", "IQoJb3Jp FwoGZXIv FQoGZXIv", rf"{_B64}{{80,2000}}+={{0,2}}"),
    Row("aws_bedrock_key", "ABSK", rf"{_B64}{{80,400}}+={{0,2}}"),
    Row("aws_bedrock_key", "bedrock-api-key-", rf"{_B64}{{40,2000}}+={{0,2}}"),
    Row("aws_mws_token", "amzn.mws.", _UUID),
    Row("google_api_key", "AIza", rf"{_DASHED}{{35}}(?!{_DASHED})"),
    Row("google_oauth_secret", "GOCSPX-", rf"{_DASHED}{{28}}(?!{_DASHED})"),
    Row("google_oauth_token", "ya29.", rf"{_DASHED}{{20,1000}}+"),
    Row("google_refresh_token", "1//0", rf"{_DASHED}{{35,200}}+"),
    Row("alibaba_access_key", "LTAI", rf"{_WORD}{{12,26}}(?!{_WORD})", 0.9),
    Row("tencent_secret_id", "AKID", rf"{_WORD}{{32}}(?!{_WORD})", 0.9),
    Row("yandex_api_key", "AQVN", rf"{_DASHED}{{35,38}}(?!{_DASHED})"),
    Row("digitalocean_token", "dop_v1_ doo_v1_ dor_v1_", r"[0-9a-f]{64}"),
    Row("cloudflare_origin_key", "v1.0-", r"[0-9a-f]{24}-[0-9a-f]{100,200}"),
    Row("heroku_api_key", "HRKU-", rf"{_DASHED}{{36,80}}+"),
    Row("fly_token", "fo1_", rf"{_DASHED}{{40,60}}+"),
    Row("fly_token", "fm1a_ fm1r_ fm2_", rf"{_B64}{{80,1200}}+={{0,3}}"),
    Row("netlify_token", "nfp_ nfc_ nfu_", rf"{_WORD}{{36,60}}+"),
    Row("render_key", "rnd_", rf"{_WORD}{{28,40}}(?!{_WORD})", 0.9),
    Row("supabase_key", "sbp_", r"[0-9a-f]{40}"),
    Row("supabase_key", "sb_secret_", rf"{_DASHED}{{24,60}}+"),
    Row("planetscale_secret", "pscale_tkn_ pscale_pw_ pscale_oauth_", r"[\w=.\-]{32,64}+"),
    Row("neon_key", "napi_", rf"{_LOW}{{40,80}}+"),
    Row("scalingo_token", "tk-us-", rf"{_DASHED}{{48}}"),
    Row("vercel_token", "vercel_blob_rw_ vcp_ vck_", rf"{_DASHED}{{24,80}}+", 0.9),
    Row("tailscale_key", "tskey-auth- tskey-api- tskey-client- tskey-scim- tskey-webhook-", rf"{_DASHED}{{20,80}}+"),
    # Code and packages
    Row("github_token", "ghp_ gho_ ghu_ ghs_ ghr_", rf"{_WORD}{{36,255}}+"),
    Row("github_token", "github_pat_", r"[0-9A-Za-z_]{60,255}+"),
    Row(
        "gitlab_token",
        "glpat- gldt- glrt- glft- glsoat- glffct- glimt- glagent- gloas- glptt- glcbt- glwt-",
        rf"(?:{_DASHED}{{20,300}}+)(?:\.[0-9a-z]{{2,12}}){{0,2}}",
    ),
    Row("gitlab_token", "GR1348941", rf"{_DASHED}{{20,40}}+"),
    Row("npm_token", "npm_", rf"{_WORD}{{36}}(?!{_WORD})"),
    Row("pypi_token", "pypi-AgEI pypi-AgEN", rf"{_DASHED}{{50,1000}}+"),
    Row("rubygems_key", "rubygems_", r"[0-9a-f]{48}"),
    Row("nuget_key", "oy2", rf"{_LOW}{{43}}(?!{_WORD})"),
    Row("crates_token", "cio", rf"{_WORD}{{32}}(?!{_WORD})", 0.85),
    Row("docker_token", "dckr_pat_ dckr_oat_", rf"{_DASHED}{{24,60}}+"),
    Row("docker_swarm_token", "SWMTKN-1-", rf"{_LOW}{{40,60}}-{_LOW}{{20,30}}"),
    Row("artifactory_token", "AKCp", rf"{_WORD}{{60,80}}+"),
    Row("artifactory_token", "cmVmdGtuOj", rf"{_WORD}{{40,80}}+"),
    Row("clojars_token", "CLOJARS_", rf"{_LOW}{{60}}"),
    Row("buildkite_token", "bkua_ bkaj_", r"[0-9a-f]{40}"),
    Row("circleci_token", "CCIPAT_ CCIPRJ_", rf"{_WORD}{{16,32}}_[0-9a-f]{{40}}"),
    Row("sonar_token", "squ_ sqp_ sqa_", r"[0-9a-f]{40}"),
    Row("snyk_token", "snyk_uat. snyk_sat.", r"[0-9a-f]{8}\.[\w\-.]{40,200}+"),
    Row("codeclimate_token", "qlty_ qltcp_ qltcw_", rf"{_WORD}{{32,64}}+"),
    Row("octopus_key", "API-", r"[A-Z0-9]{25,34}(?![0-9A-Za-z_\-])", 0.85),
    Row("atlassian_token", "ATATT3 ATCTT3 ATBB ATSTT3", rf"[0-9A-Za-z_\-]{{24,300}}+(?:={_HEX}{{8}})?"),
    Row("sourcegraph_token", "sgp_", rf"(?:{_HEX}{{16}}_|local_)?{_HEX}{{40}}"),
    Row("launchdarkly_key", "sdk- api- mob-", rf"{_UUID}", 0.8),
    Row("hcp_token", "hvs. hvb. hvr.", rf"{_DASHED}{{24,300}}+"),
    Row("doppler_token", "dp.pt. dp.ct. dp.sa. dp.scim. dp.audit. dp.said.", rf"{_WORD}{{40,44}}"),
    Row("doppler_token", "dp.st.", rf"(?:[a-z0-9_\-]{{2,35}}\.)?{_WORD}{{40,44}}"),
    Row("pulumi_token", "pul-", r"[0-9a-f]{40}"),
    Row("onepassword_token", "ops_eyJ", r"[0-9A-Za-z_\-+/]{100,2000}+={0,3}"),
    Row("onepassword_secret_key", "A3-", r"[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}"),
    Row("age_secret_key", "AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    Row("openshift_token", "sha256~", rf"{_DASHED}{{43}}"),
    Row("databricks_token", "dapi dose dkea", r"[0-9a-f]{32}(?:-[0-9])?(?![0-9A-Za-z])", 0.95),
    Row("prefect_key", "pnu_ pnb_", rf"{_WORD}{{36}}"),
    Row("wandb_key", "wandb_v1_", rf"{_DASHED}{{40,120}}+"),
    # Language models
    Row("anthropic_key", "sk-ant-", rf"[a-z]{{2,10}}[0-9]{{2}}-{_DASHED}{{24,200}}+"),
    Row("openai_key", "sk-proj- sk-svcacct- sk-admin- sk-None- sk-service-", rf"{_DASHED}{{36,300}}+"),
    Row("openrouter_key", "sk-or-v1-", r"[0-9a-f]{64}"),
    Row("openai_key", "sk-", rf"{_WORD}{{32,64}}(?!{_WORD})", 0.95),
    Row("openai_session_key", "sess-", rf"{_WORD}{{40}}(?!{_WORD})"),
    Row("huggingface_token", "hf_ api_org_", rf"{_WORD}{{34,40}}(?!{_WORD})"),
    Row("groq_key", "gsk_", rf"{_WORD}{{40,60}}(?!{_WORD})"),
    Row("xai_key", "xai-", rf"{_WORD}{{70,100}}(?!{_WORD})"),
    Row("perplexity_key", "pplx-", rf"{_WORD}{{40,60}}(?!{_WORD})"),
    Row("replicate_token", "r8_", rf"{_WORD}{{37}}(?!{_WORD})"),
    Row("langsmith_key", "lsv2_pt_ lsv2_sk_ ls__", r"[0-9a-f]{32}(?:_[0-9a-f]{10})?"),
    Row("pinecone_key", "pcsk_", r"[0-9A-Za-z_]{40,100}+"),
    Row("tavily_key", "tvly-", rf"(?:dev-|prod-)?{_DASHED}{{24,64}}+"),
    Row("nvidia_key", "nvapi-", rf"{_DASHED}{{50,100}}+"),
    Row("fireworks_key", "fw_", rf"{_WORD}{{22,32}}(?!{_WORD})", 0.85),
    Row("firecrawl_key", "fc-", r"[0-9a-f]{32}(?![0-9A-Za-z])"),
    Row("cerebras_key", "csk-", rf"{_LOW}{{40,60}}(?!{_WORD})"),
    Row("jina_key", "jina_", rf"{_DASHED}{{50,80}}+"),
    Row("voyage_key", "pa- al-", rf"{_DASHED}{{43}}(?!{_DASHED})", 0.85),
    Row("together_key", "tgp_v1_", rf"{_DASHED}{{40,60}}+"),
    Row("elevenlabs_key", "sk_", r"[0-9a-f]{48}(?![0-9A-Za-z])"),
    Row("langfuse_key", "sk-lf-", _UUID),
    # Money
    Row("stripe_key", "sk_live_ sk_test_ rk_live_ rk_test_", rf"{_WORD}{{16,250}}+"),
    Row("stripe_webhook_secret", "whsec_", r"[0-9A-Za-z+/=]{24,80}+"),
    Row("square_token", "sq0atp- sq0csp-", rf"{_DASHED}{{22,60}}+"),
    Row("square_token", "EAAA", rf"{_DASHED}{{56,64}}(?!{_DASHED})", 0.85),
    Row("braintree_token", "access_token$production$ access_token$sandbox$", r"[0-9a-z]{16}\$[0-9a-f]{32}"),
    Row("plaid_token", "access-production- access-development- access-sandbox-", _UUID),
    Row("flutterwave_key", "FLWSECK- FLWSECK_TEST-", rf"{_LOW}{{12,40}}(?:-X)?"),
    Row("razorpay_key", "rzp_live_ rzp_test_", rf"{_WORD}{{14}}(?!{_WORD})", 0.8),
    Row("easypost_key", "EZAK EZTK", rf"{_WORD}{{54}}"),
    Row("shippo_token", "shippo_live_ shippo_test_", rf"{_HEX}{{40}}"),
    Row("duffel_token", "duffel_live_ duffel_test_", rf"{_DASHED}{{43}}"),
    Row("shopify_token", "shpat_ shpca_ shppa_ shpss_ shptka_", r"[0-9a-fA-F]{32}"),
    # Talk and work
    Row("slack_token", "xoxb- xoxp- xoxa- xoxr- xoxs- xoxo- xoxd- xoxc- xoxe-", r"[0-9A-Za-z%\-]{20,400}+"),
    Row("slack_token", "xoxe.xoxp- xoxe.xoxb-", r"[0-9A-Za-z%\-]{20,400}+"),
    Row("slack_app_token", "xapp-", r"[0-9]-[A-Z0-9]{8,16}-[0-9]{8,16}-[0-9a-f]{20,80}+"),
    Row("sendgrid_key", "SG.", rf"{_DASHED}{{16,32}}\.{_DASHED}{{30,60}}+"),
    Row("twilio_api_key", "SK", r"[0-9a-f]{32}(?![0-9A-Za-z])", 0.9),
    Row("mailgun_key", "key-", r"[0-9a-f]{32}(?![0-9A-Za-z])", 0.95),
    Row("sendinblue_key", "xkeysib- xsmtpsib-", r"[0-9a-f]{64}-[0-9A-Za-z]{16}"),
    Row("resend_key", "re_", rf"{_WORD}{{7,12}}_{_WORD}{{20,32}}(?!{_WORD})"),
    Row("postman_key", "PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}"),
    Row("linear_key", "lin_api_ lin_oauth_ lin_wh_", rf"{_WORD}{{32,80}}+"),
    Row("notion_token", "ntn_", rf"{_WORD}{{40,60}}(?!{_WORD})"),
    Row("notion_token", "secret_", rf"{_WORD}{{43}}(?!{_WORD})", 0.95),
    Row("airtable_token", "pat", rf"{_WORD}{{14}}\.[0-9a-f]{{64}}"),
    # The first part is the number of the bot in Base64, so its first two letters come from a digit.
    Row("discord_token", "MT Mj Mz ND NT Nj Nz OD OT", rf"{_DASHED}{{22,26}}\.{_DASHED}{{6}}\.{_DASHED}{{27,40}}+"),
    Row("figma_token", "figd_ figo_ figu_", rf"{_DASHED}{{30,80}}+"),
    Row("contentful_token", "CFPAT-", rf"{_DASHED}{{43}}"),
    Row("typeform_token", "tfp_", r"[\w\-.=]{40,64}+"),
    Row("hubspot_token", "pat-na1- pat-na2- pat-eu1-", _UUID),
    Row("dropbox_token", "sl.", rf"(?:u\.|B)?{_DASHED}{{100,1500}}+"),
    Row("frameio_token", "fio-u-", rf"{_DASHED}{{64}}"),
    Row("readme_key", "rdme_", rf"{_LOW}{{70}}"),
    Row("intercom_token", "dG9rOj", rf"{_B64}{{40,120}}+={{0,2}}"),
    Row("facebook_token", "EAAC EAAB EAAG EAAM EAAD", rf"{_WORD}{{80,400}}+"),
    Row("twitter_bearer", "AAAAAAAAAAAAAAAAAAAAA", r"[0-9A-Za-z%]{60,140}+"),
    Row("mapbox_token", "sk.eyJ", rf"{_DASHED}{{40,200}}+\.{_DASHED}{{16,40}}+"),
    # Watching machines
    Row("grafana_token", "glsa_", rf"{_WORD}{{32}}_{_HEX}{{8}}"),
    Row("grafana_token", "glc_", rf"{_B64}{{32,400}}+={{0,3}}"),
    Row("grafana_key", "eyJrIjoi", rf"{_B64}{{60,400}}+={{0,3}}"),
    Row("newrelic_key", "NRAK- NRII- NRIQ- NRRA- NRSP-", r"[0-9A-Za-z_\-]{24,42}+"),
    Row("newrelic_key", "NRJS-", r"[0-9a-f]{19}"),
    Row("sentry_token", "sntrys_", r"[0-9A-Za-z+/=_\-]{60,600}+"),
    Row("sentry_token", "sntryu_ sntryi_", r"[0-9a-f]{64}"),
    Row("dynatrace_token", "dt0c01. dt0s01. dt0s16.", r"[A-Z0-9]{8,24}\.[A-Z0-9]{64}"),
    Row("honeycomb_key", "hcaik_ hcamk_ hcxik_ hcxmk_ hcbik_", rf"{_LOW}{{50,70}}+"),
    Row("posthog_key", "phx_ phs_", rf"{_WORD}{{40,60}}+"),
    Row("harness_key", "pat. sat.", rf"{_DASHED}{{22}}\.{_WORD}{{24}}\.{_WORD}{{20}}"),
    Row("adobe_secret", "p8e- p8-", rf"{_DASHED}{{30,40}}(?!{_DASHED})", 0.9),
)  # fmt: skip

_BY_PREFIX: dict[str, list[tuple[Row, re.Pattern[str]]]] = {}
for _row in _ROWS:
    _body = pattern(_row.body)
    for _prefix in _row.prefixes.split():
        _BY_PREFIX.setdefault(_prefix, []).append((_row, _body))


def _branching(words: list[str]) -> str:
    """An alternation that shares beginnings, so that a place in the text is compared with one word and not with all."""
    if len(words) == 1:
        return re.escape(words[0])
    heads: dict[str, list[str]] = {}
    for word in words:
        heads.setdefault(word[:1], []).append(word[1:])
    branches = [re.escape(head) + _branching(tails) for head, tails in sorted(heads.items(), reverse=True) if head]
    # The empty tail comes last: the longest prefix wins.
    return f"(?:{'|'.join(branches + [''] * ('' in heads))})"


# At the start of a word: after a sign, a written newline (`\n`), a written equals sign (`%3D`), a terminal's colour.
_PREFIX = _branching(sorted(_BY_PREFIX))
_FIRST = pattern(_PREFIX)
_LATER = pattern(rf"[^0-9A-Za-z](?:(?<=\\)[nrt]|(?<=%)[0-9A-Fa-f]{{2}}|(?<=\[)[0-9;]{{1,8}}m)?({_PREFIX})")


class Shape(NamedTuple):
    """A key that is known by something in its middle or at its end: the sign must be in the text."""

    name: str
    sign: str
    whole: re.Pattern[str]


def _shape(name: str, sign: str, first: str, rest: str) -> Shape:
    # What is before comes after the first character: so the characters that it may be are looked for first, and quickly.
    before = rf"(?:(?<!{first}.)|(?<=\\[nrt].)|(?<=%[0-9A-F][0-9A-F].))"
    return Shape(name, sign, pattern(first + before + rest))


_SHAPES = (
    _shape("terraform_token", ".atlasv1.", _WORD, rf"{_WORD}{{13}}\.atlasv1\.[0-9A-Za-z_\-=]{{60,70}}"),
    _shape("azure_client_secret", "Q~", r"[\w.~\-]", r"[\w.~\-]{2}[0-9]Q~[\w.~\-]{31,34}(?![\w~\-])"),
    _shape("azure_devops_token", "AZDO", _WORD, rf"{_WORD}{{75}}AZDO{_WORD}{{4}}(?!{_WORD})"),
    _shape("azure_key", "ACDb", _WORD, rf"{_WORD}{{51}}JQQJ9{_WORD}{{2,10}}ACDb{_WORD}{{10,24}}"),
    _shape("azure_storage_key", "+ASt", _B64, rf"{_B64}{{75}}\+ASt{_B64}{{6}}=="),
    _shape("telegram_bot_token", ":AA", r"[0-9]", rf"[0-9]{{7,9}}:AA{_DASHED}{{32,36}}(?!{_DASHED})"),
    _shape("mailchimp_key", "-us", r"[0-9a-f]", r"[0-9a-f]{31}-us[0-9]{1,2}(?![0-9A-Za-z])"),
    _shape("maxmind_key", "_mmk", _WORD, rf"{_WORD}{{5}}_{_WORD}{{29}}_mmk(?!{_WORD})"),
    _shape(
        "slack_webhook", "slack.com/", "h", r"ooks\.slack\.com/(?:services|workflows|triggers)/[0-9A-Za-z+/]{30,120}+"
    ),
    _shape(
        "discord_webhook", "/webhooks/", "d", rf"iscord(?:app)?\.com/api/webhooks/[0-9]{{15,22}}/{_DASHED}{{50,90}}+"
    ),
    _shape("teams_webhook", "office.com/", "w", r"ebhook\.office\.com/webhookb2/[0-9a-zA-Z@\-/]{60,300}+"),
    _shape("zapier_webhook", "zapier.com/", "h", r"ooks\.zapier\.com/hooks/catch/[0-9]{4,12}/[0-9a-z]{5,12}"),
)
PROVIDER_NAMES = frozenset(row.name for row in (*_ROWS, *_SHAPES))


def provider_keys(text: str, start: int, end: int) -> Iterator[Finding]:
    """In one stretch without white space."""
    first = _FIRST.match(text, start, end)
    if first is not None:
        yield from _bodies(text, start, first.end(), end)
    for found in _LATER.finditer(text, start, end):
        yield from _bodies(text, *found.span(1), end)


def shaped_keys(text: str) -> Iterator[Finding]:
    for shape in _SHAPES:
        if shape.sign in text:
            for found in shape.whole.finditer(text):
                if _is_drawn(found[0]):
                    yield Finding("secret", shape.name, found.start(), found.end(), 0.95)


def _bodies(text: str, start: int, at: int, end: int) -> Iterator[Finding]:
    for row, body in _BY_PREFIX[text[start:at]]:
        rest = body.match(text, at, end)
        if rest is not None and _is_drawn(rest[0]):
            yield Finding("secret", row.name, start, rest.end(), row.confidence)
            return


def _is_drawn(body: str) -> bool:
    """The prefix may also begin a name, and the manual shows a key that nobody has."""
    if entropy(body) < 2.5 or stands_for(body):
        return False
    return sum(map(str.isdigit, body)) * 10 > len(body) or wordiness(body) < 0.85
