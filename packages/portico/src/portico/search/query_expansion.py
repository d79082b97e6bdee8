"""What a task needs that it does not say: “save it as report.md” needs a tool that writes files.

Left of each colon stand words of people's tasks, right of it the words that tools are called by which such tasks need.
They are stems by the time they are used. The table knows English, and everyday work.
"""

from __future__ import annotations

import re
from functools import cache

from portico.search.text import stem

_TABLE = """
today tomorrow yesterday tonight now weekend week month currently upcoming future: current date time
deadline ago since until birthday: date time
trip travel tour visit itinerary journey sightseeing vacation: map place route geocode nearby
nearby near around within distance located location address where closest: geocode address nearby place map
walk drive driving: geocode address nearby place map
restaurant cafe hotel museum shop lunch dinner attraction park: nearby place search category
route directions commute way road: route directions map
train rail railway speed ticket departure: train ticket station
flight airport airline: flight airport ticket
hotel homestay accommodation apartment lodging stay: hotel listing search
weather rain temperature sunny climate: weather forecast
estimate calculate percentage total sum average budget worth many much: calculate
price stock share market investment ticker company earnings: stock price ticker financial
bitcoin crypto ethereum token coin: crypto price token
currency dollar euro exchange: exchange rate currency convert
news headline trending latest hot: news trending top
paper papers arxiv research study article: paper search article
disease drug clinical gene protein patient: trial article gene
painting artwork art sculpture exhibition artist: museum object art
wikipedia encyclopedia who history: wikipedia article search
website webpage page site url link: fetch web page url
online internet information find look: search
video youtube talk lecture subtitles: video transcript youtube
song music audio sound: audio music
picture photo image screenshot logo: image picture
repository commit branch pull issue github gitlab: git repository
code function bug script program compile test: code file
library framework documentation api package: library docs
save store write draft export output: write file create save
open read load view: read file open
folder directory files: list directory file
rename move copy delete: move file
markdown note readme: markdown write file
word document letter report: document paragraph
spreadsheet excel table rows column sheet: excel sheet read
slides presentation ppt powerpoint deck: presentation slide
pdf: pdf document convert
chart plot graph visualize visualization diagram: generate chart
mindmap mind: mind map
email mail inbox message: email send message
calendar meeting appointment schedule remind: calendar event date
chat slack discord telegram channel: message send channel
task todo plan project: task list
remember recall remind: memory note
database sql query records: database query sql
log logs error crash: log event
process cpu memory disk machine: process system info
differ difference compare changes: diff compare
translate language: translate text
recipe cook meal food eat: recipe meal
game champion player hero team character: character champion player
movie film book rank popular: rank movie book
random dice password shuffle: random
browser click login form navigate: browser navigate click
hash checksum encode decode encrypt base64: hash encode
zone timezone clock: time convert
birth horoscope lucky almanac lunar wedding: calendar lunar date
obtain retrieve fetch acquire collect gather: get fetch
lookup query seek discover explore browse: search find
remove erase clear drop: delete remove
modify edit change alter revise adjust: update edit
produce compose build make design: create generate
insert append attach put: add insert
transform turn transcode: convert
compute evaluate solve math equation: calculate
display enumerate: list
launch execute start invoke: run start
combine join concatenate: merge
cut divide separate: split extract
parse scrape crawl: extract fetch
summarize summary overview gist: summary summarize
describe explain introduce detail: info details
check verify validate confirm: validate check
upload publish deploy release: upload publish
download grab: download
subscribe notify alert: notification subscribe
install dependency version upgrade: package version
vulnerability security license outdated: package security
npm javascript node typescript: npm package
maven java gradle: maven version
python pip: python package
docker container kubernetes pod cluster: container
server host port network ip dns: server network
terminal shell command: command execute process
branch merge diff checkout: git branch diff
translate english chinese french spanish: translate language
capital population country region: country search
lyrics tempo beat melody pitch bpm tune: audio tempo beat
color palette icon font svg logo: svg icon
draw sketch paint canvas: drawing canvas
flowchart sequence gantt mermaid uml: mermaid diagram
html css web frontend component: html component
json xml yaml csv: convert format
regex pattern replace text string: text
word count character length: text count
resize crop filter metadata exif: image
scan ocr recognize: image extract text
template theme style layout format: template format
heading footnote paragraph bullet: document add
cell formula pivot worksheet: excel sheet
dividend revenue profit balance income cash: income statement financial stock
index fund etf bond portfolio: stock market
gold silver oil commodity: asset price
sentiment fear greed: index market
loan mortgage interest tax: calculate rate
invoice payment refund customer: payment customer
chess move puzzle board: chess game
lol league summoner tft esports ranking: champion summoner match
anime manga novel: rank search
zhihu weibo douyin bilibili toutiao baidu hot: trending hot rank
twitter reddit hackernews post tweet: post story
podcast episode radio: audio episode
tarot divination zodiac bazi fortune: chart date
gene mutation variant genome cancer tumor: gene variant
medicine dose symptom treatment hospital: drug trial
recipe ingredient dish cuisine breakfast: recipe
school university course degree: school search
bus subway metro station: station route
car ev charging parking gas: parking charging station
sunrise sunset moon star planet: solar time
holiday festival anniversary: calendar date
house rent neighborhood estate: neighborhood listing
citation author journal bibliography: paper author
preprint biorxiv pubmed: article search
patent law legal court: search
dataset model training inference: model
think reason plan step: thinking
memory knowledge entity relation: entity relation
uuid id guid: random
encrypt password token secret: hash
zip compress archive: archive
job salary career hire: job search
buy order shop cart product: product order search
"""

# What people call a kind of file, by how its name ends.
_ENDINGS = """
md: markdown | docx doc odt: word document | xlsx xls ods: excel spreadsheet | csv tsv: csv table
pptx ppt odp: powerpoint presentation ppt | pdf: pdf | txt bib log: text | png jpg jpeg gif webp bmp: image picture
svg: svg image | mp3 wav flac ogg m4a: audio | mp4 mov avi mkv webm: video | html htm: html | json: json
yaml yml toml ini: config | py: python code | js ts tsx rs go java c cpp rb sh: code | db sqlite sql: database
zip tar gz: archive | eml: email | ics: calendar
"""

_URL = re.compile(r"https?://([^\s/]*)\S*")
_FILE = re.compile(r"(?<![\w:/])(?:~|\.{1,2})?/[\w.\-/~]+|\b[\w\-]+\.[a-z][a-z0-9]{1,4}\b")
_SPACED = re.compile(r"[_/.~\-]+")


@cache
def needed() -> dict[str, frozenset[str]]:
    """By the stem of a word: the stems of those that are needed with it."""
    found: dict[str, frozenset[str]] = {}
    for line in _TABLE.strip().splitlines():
        said, needs = line.split(":")
        for word in map(stem, said.split()):
            found[word] = found.get(word, frozenset()) | {stem(one) for one in needs.split()}
    return found


@cache
def _kinds() -> dict[str, str]:
    groups = (group.split(":") for line in _ENDINGS.strip().splitlines() for group in line.split("|"))
    return {ending: kind.strip() for endings, kind in groups for ending in endings.split()}


def without_places(text: str) -> tuple[str, str, str]:
    """A text without the paths and addresses in it; the kinds of things that are there; and the words in them, which
    say little."""
    kinds: list[str] = []
    inside: list[str] = []

    def url(found: re.Match[str]) -> str:
        kinds.append("url web page")
        inside.append(_SPACED.sub(" ", found[1]))
        return " "

    def file(found: re.Match[str]) -> str:
        name = found[0].rstrip(".").rpartition("/")[2]
        stem_of_name, dot, ending = name.rpartition(".")
        kind = _kinds().get(ending.lower()) if dot and stem_of_name else None
        # Next.js is no file.
        if kind in (None, "code") and "/" not in found[0]:
            return found[0]
        kinds.append(f"file {kind}" if kind is not None else "file" if dot else "directory")
        inside.append(_SPACED.sub(" ", found[0]))
        return " "

    return _FILE.sub(file, _URL.sub(url, text)), " ".join(kinds), " ".join(inside)
